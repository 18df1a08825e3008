"""Refuse clusters that fit the schema and that HyperPod fails to create or update.

Sources: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html,
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ref.html (lifecycle scripts, troubleshooting).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from podwright_rehearsal.aws import service_model, slurm_rules
from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.cluster_request import Request

SERVICE_PRINCIPAL = "sagemaker.amazonaws.com"
NO_BATCHES = "updates in batches are available only for clusters orchestrated by EKS"


def problems(model: dict[str, Any], account: Account) -> list[str]:
    """Return every reason for which HyperPod would refuse or fail this cluster."""
    request = Request(model, account)
    return [problem for rule in RULES for problem in rule(request)]


def controller_groups(model: dict[str, Any], account: Account) -> list[str]:
    """Return the names of the groups that run slurmctld."""
    return Request(model, account).controller_groups


def there_are_groups(request: Request) -> Iterator[str]:
    """Require instance groups: Slurm needs them, the schema does not."""
    if not request.groups:
        yield "InstanceGroups is missing: a Slurm cluster needs a controller and at least one worker group"


def groups_have_known_types(request: Request) -> Iterator[str]:
    """Require one type or a list of types: botocore lists the known ones, the CloudFormation schema does not."""
    for group in request.groups:
        name, kinds = group["InstanceGroupName"], types_of(group)
        if ("InstanceType" in group) == ("InstanceRequirements" in group):
            yield f"{name} needs either InstanceType or InstanceRequirements: they are mutually exclusive"
        for instance_type in kinds:
            if instance_type not in instance_types():
                yield f"InstanceType {instance_type} of {name} is not one of HyperPod's instance types"


def group_names_are_unique(request: Request) -> Iterator[str]:
    """Require unique group names."""
    for name, times in Counter(group["InstanceGroupName"] for group in request.groups).items():
        if times > 1:
            yield f"InstanceGroupName {name} is used by {times} instance groups: names must be unique"


def network_exists(request: Request) -> Iterator[str]:
    """Require existing subnets and security groups, all in one VPC."""
    if not request.model.get("VpcConfig"):
        yield "VpcConfig is missing: the stand-in emulates clusters in the account's own VPC only"
    for network in request.networks:
        subnets = {subnet_id: request.account.subnet(subnet_id) for subnet_id in network["Subnets"]}
        found_groups = {group_id: request.account.security_group(group_id) for group_id in network["SecurityGroupIds"]}
        members = {**subnets, **found_groups}
        yield from (f"{member} does not exist" for member, resource in members.items() if resource is None)
        vpcs = {resource.vpc_id for resource in members.values() if resource}
        if len(vpcs) > 1:
            yield f"{', '.join(members)} must lie in one VPC, not in {' and '.join(sorted(vpcs))}"


def keys_are_for_continuous_provisioning(request: Request) -> Iterator[str]:
    """Require Continuous provisioning for customer keys.

    https://docs.aws.amazon.com/sagemaker/latest/dg/smcluster-cmk.html
    """
    if request.model.get("NodeProvisioningMode") == "Continuous":
        return
    for group in request.groups:
        volumes = [item.get("EbsVolumeConfig") or {} for item in group.get("InstanceStorageConfigs") or []]
        if any("VolumeKmsKeyId" in volume for volume in volumes):
            yield f"VolumeKmsKeyId of {group['InstanceGroupName']} needs NodeProvisioningMode Continuous"


def spot_is_for_continuous_provisioning(request: Request) -> Iterator[str]:
    """Require Continuous provisioning for spot capacity.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-spot.html
    """
    if request.model.get("NodeProvisioningMode") == "Continuous":
        return
    for group in request.groups:
        if "Spot" in (group.get("CapacityRequirements") or {}):
            yield f"CapacityRequirements Spot of {group['InstanceGroupName']} needs NodeProvisioningMode Continuous"


def minimum_is_for_continuous_provisioning(request: Request) -> Iterator[str]:
    """Require Continuous provisioning for MinInstanceCount. That AWS refuses it, and does not ignore it, is a guess.

    https://aws.amazon.com/about-aws/whats-new/2026/05/amazon-sagemaker-hyperpod-mincount
    """
    if request.model.get("NodeProvisioningMode") == "Continuous":
        return
    for group in request.groups:
        if "MinInstanceCount" in group:
            yield f"MinInstanceCount of {group['InstanceGroupName']} needs NodeProvisioningMode Continuous"


def batches_need_another_orchestrator(request: Request) -> Iterator[str]:
    """Refuse scheduled updates in batches on Slurm, without Continuous provisioning.

    AWS's page: "available only for HyperPod clusters integrated with Amazon EKS". That AWS refuses the policy, and does
    not ignore it, and that continuously provisioned clusters take it, are guesses.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-release-ami-update.html
    """
    if updates_in_batches(request.model):
        return
    for group in request.groups:
        if (group.get("ScheduledUpdateConfig") or {}).get("DeploymentConfig"):
            yield f"DeploymentConfig of {group['InstanceGroupName']}: {NO_BATCHES}"


def updates_in_batches(model: Mapping[str, Any]) -> bool:
    """Return whether a cluster can be updated in batches."""
    return "Eks" in (model.get("Orchestrator") or {}) or model.get("NodeProvisioningMode") == "Continuous"


def tiered_storage_is_for_eks(request: Request) -> Iterator[str]:
    """Require EKS for tiered storage.

    https://docs.aws.amazon.com/sagemaker/latest/dg/managed-tier-checkpointing-setup.html
    """
    if request.model.get("TieredStorageConfig") and "Eks" not in (request.model.get("Orchestrator") or {}):
        yield "TieredStorageConfig is supported for clusters with Orchestrator Eks only"


def roles_can_be_assumed(request: Request) -> Iterator[str]:
    """Require execution roles that exist and trust SageMaker."""
    for arn in dict.fromkeys(group["ExecutionRole"] for group in request.groups):
        policy = request.account.trust_policy(arn)
        if policy is None:
            yield f"ExecutionRole {arn} does not exist"
        elif not _trusts_sagemaker(policy):
            yield f"ExecutionRole {arn} cannot be assumed: its trust policy must allow that to {SERVICE_PRINCIPAL}"


def efa_traffic_passes(request: Request) -> Iterator[str]:
    """Require, for types with EFA, a security group that passes all traffic to itself, in and out."""
    for group in request.groups:
        network = group.get("OverrideVpcConfig") or request.model.get("VpcConfig")
        kinds = [kind for kind in types_of(group) if request.account.supports_efa(kind)]
        if not network or not kinds:
            continue
        missing = _directions_without_self_traffic(request, network["SecurityGroupIds"])
        if missing:
            yield (
                f"EFA health checks did not run successfully on {group['InstanceGroupName']}: "
                f"{kinds[0]} needs a security group whose {' and '.join(missing)} rules allow all traffic "
                f"from and to the group itself, not {', '.join(network['SecurityGroupIds'])}"
            )


def storage_is_reachable(request: Request) -> Iterator[str]:
    """Require a route to each file system and database that groups use, and a rule of its security group.

    Names that the account does not know are not judged.
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-on-premises.html
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
    """
    for group in request.groups:
        network = group.get("OverrideVpcConfig") or request.model.get("VpcConfig") or {}
        subnets = [request.account.subnet(subnet_id) for subnet_id in network.get("Subnets", [])]
        for name in request.host_names(group):
            host = request.account.host(name)
            for subnet in subnets[:1]:
                if host is None or subnet is None:
                    continue
                if not request.account.has_route(subnet, host.vpc_id):
                    yield (
                        f"Nodes of {group['InstanceGroupName']} cannot reach {name}: it is in {host.vpc_id}, and "
                        f"{subnet.subnet_id} of {subnet.vpc_id} has no route there"
                    )
                elif not request.account.admits(host, subnet, network["SecurityGroupIds"]):
                    yield (
                        f"Nodes of {group['InstanceGroupName']} cannot reach {name}: no inbound rule of "
                        f"{', '.join(host.security_group_ids)} lets them use TCP port {host.port}"
                    )


RULES: tuple[Callable[[Request], Iterator[str]], ...] = (
    there_are_groups,
    groups_have_known_types,
    group_names_are_unique,
    network_exists,
    roles_can_be_assumed,
    keys_are_for_continuous_provisioning,
    spot_is_for_continuous_provisioning,
    minimum_is_for_continuous_provisioning,
    batches_need_another_orchestrator,
    tiered_storage_is_for_eks,
    slurm_rules.scripts_exist,
    slurm_rules.modes_are_not_mixed,
    slurm_rules.scripts_name_one_controller,
    slurm_rules.api_names_one_controller,
    slurm_rules.api_strategy_fits,
    slurm_rules.api_mounts_once,
    efa_traffic_passes,
    storage_is_reachable,
)


def types_of(group: dict[str, Any]) -> list[str]:
    """Return the types that a group's nodes may have; the first is tried first."""
    kinds: list[str] = group.get("InstanceRequirements", {}).get("InstanceTypes") or []
    return kinds or [group["InstanceType"]] if kinds or "InstanceType" in group else []


@lru_cache
def instance_types() -> frozenset[str]:
    """Return HyperPod's instance types, from the service model that boto3 ships."""
    return frozenset(service_model.sagemaker().shape_for("ClusterInstanceType").enum)


def _directions_without_self_traffic(request: Request, group_ids: list[str]) -> list[str]:
    groups = [group for group in map(request.account.security_group, group_ids) if group]
    directions = {"inbound": False, "outbound": True}
    return [
        name
        for name, is_egress in directions.items()
        if not any(group.passes_all_within(is_egress=is_egress) for group in groups)
    ]


def _trusts_sagemaker(policy: dict[str, Any]) -> bool:
    statements = policy.get("Statement", [])
    return any(
        statement.get("Effect") == "Allow"
        and "sts:AssumeRole" in _list(statement.get("Action"))
        and SERVICE_PRINCIPAL in _list((statement.get("Principal") or {}).get("Service"))
        for statement in (statements if isinstance(statements, list) else [statements])
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
