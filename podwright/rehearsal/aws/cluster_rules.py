"""Why HyperPod fails to create or update a cluster that fits the schema.

Sources: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html,
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ref.html (lifecycle scripts, troubleshooting).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import botocore.session

from podwright.rehearsal.aws.account import Account

SERVICE_PRINCIPAL = "sagemaker.amazonaws.com"
SOURCE_PREFIX = "s3://sagemaker-"
PROVISIONING_PARAMETERS = "provisioning_parameters.json"  # AWS's name, which its agent looks for


@dataclass(frozen=True)
class Request:
    """A resource model that fits the schema, and the account it is to live in."""

    model: dict[str, Any]
    account: Account

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The instance groups."""
        groups: list[dict[str, Any]] = self.model.get("InstanceGroups") or []
        return groups

    @cached_property
    def counts(self) -> dict[str, int]:
        """Instances asked for, by group name."""
        return {group["InstanceGroupName"]: group["InstanceCount"] for group in self.groups}

    @cached_property
    def networks(self) -> list[dict[str, list[str]]]:
        """The cluster's VpcConfig and the groups' own, those that are given."""
        overrides = [group.get("OverrideVpcConfig") for group in self.groups]
        return [network for network in (self.model.get("VpcConfig"), *overrides) if network]

    @cached_property
    def sources(self) -> list[str]:
        """The S3 prefixes of lifecycle scripts, each once, without a slash at the end."""
        uris = [group.get("LifeCycleConfig", {}).get("SourceS3Uri", "") for group in self.groups]
        return list(dict.fromkeys(uri.rstrip("/") for uri in uris if uri))

    @cached_property
    def provisioning_parameters(self) -> list[tuple[str, dict[str, Any]]]:
        """The readable ``provisioning_parameters.json`` files: address and content."""
        return [(uri, content) for uri, content, problem in map(self._parameters, self.sources) if not problem]

    @property
    def controller_groups(self) -> list[str]:
        """Names of the groups that run slurmctld."""
        return [str(content.get("controller_group")) for _, content in self.provisioning_parameters]

    def read(self, uri: str) -> bytes | None:
        """An object's bytes by its ``s3://`` address."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return self.account.read_object(bucket=bucket, key=key)

    def parameter_problems(self) -> Iterator[str]:
        """Which ``provisioning_parameters.json`` cannot be read, and why."""
        for uri, _, problem in map(self._parameters, self.sources):
            if problem:
                yield f"{uri} {problem}"

    def _parameters(self, source: str) -> tuple[str, dict[str, Any], str]:
        uri = f"{source}/{PROVISIONING_PARAMETERS}"
        text = self.read(uri)
        if text is None:
            return uri, {}, "does not exist"
        try:
            content = json.loads(text)
        except ValueError as error:
            return uri, {}, f"is not JSON: {error}"
        return (uri, content, "") if isinstance(content, dict) else (uri, {}, "is not an object")


def problems(model: dict[str, Any], account: Account) -> list[str]:
    """Every reason why HyperPod would refuse or fail this cluster, in sentences."""
    request = Request(model, account)
    return [problem for rule in RULES for problem in rule(request)]


def controller_groups(model: dict[str, Any], account: Account) -> list[str]:
    """Names of the groups that run slurmctld."""
    return Request(model, account).controller_groups


def there_are_groups(request: Request) -> Iterator[str]:
    """The schema does not ask for instance groups; Slurm does."""
    if not request.groups:
        yield "InstanceGroups is missing: a Slurm cluster needs a controller and at least one worker group"


def groups_have_known_types(request: Request) -> Iterator[str]:
    """The API's enumeration is in botocore's service model; the CloudFormation schema has none."""
    for group in request.groups:
        given = group.get("InstanceType")
        if given not in instance_types():
            yield f"InstanceType {given} of {group['InstanceGroupName']} is not one of HyperPod's instance types"


def group_names_are_unique(request: Request) -> Iterator[str]:
    """The name is the group's key."""
    for name, times in Counter(group["InstanceGroupName"] for group in request.groups).items():
        if times > 1:
            yield f"InstanceGroupName {name} is used by {times} instance groups: names must be unique"


def network_exists(request: Request) -> Iterator[str]:
    """Subnets and security groups exist, all in one VPC."""
    if not request.model.get("VpcConfig"):
        yield "VpcConfig is missing: the stand-in plays clusters in the account's own VPC only"
    for network in request.networks:
        found = {subnet_id: request.account.subnet(subnet_id) for subnet_id in network["Subnets"]}
        found_groups = {group_id: request.account.security_group(group_id) for group_id in network["SecurityGroupIds"]}
        members = {**found, **found_groups}
        yield from (f"{member} does not exist" for member, resource in members.items() if resource is None)
        vpcs = {resource.vpc_id for resource in members.values() if resource}
        if len(vpcs) > 1:
            yield f"{', '.join(members)} must lie in one VPC, not in {' and '.join(sorted(vpcs))}"


def roles_can_be_assumed(request: Request) -> Iterator[str]:
    """Each execution role exists and trusts SageMaker."""
    for arn in dict.fromkeys(group["ExecutionRole"] for group in request.groups):
        policy = request.account.trust_policy(arn)
        if policy is None:
            yield f"ExecutionRole {arn} does not exist"
        elif not _trusts_sagemaker(policy):
            yield f"ExecutionRole {arn} cannot be assumed: its trust policy must allow that to {SERVICE_PRINCIPAL}"


def lifecycle_scripts_exist(request: Request) -> Iterator[str]:
    """Each group names a script that lies in a bucket SageMaker may read."""
    for group in request.groups:
        name, config = group["InstanceGroupName"], group.get("LifeCycleConfig", {})
        source, script = config.get("SourceS3Uri", ""), config.get("OnCreate", "")
        if not (source and script):
            yield f"LifeCycleConfig of {name} needs SourceS3Uri and OnCreate: the stand-in plays lifecycle scripts only"
        elif not source.startswith(SOURCE_PREFIX):
            yield f"SourceS3Uri {source} of {name} must begin with {SOURCE_PREFIX}"
        elif request.read(f"{source.rstrip('/')}/{script}") is None:
            yield f"Lifecycle scripts did not run successfully on {name}: there is no {source.rstrip('/')}/{script}"


def slurm_has_one_controller(request: Request) -> Iterator[str]:
    """provisioning_parameters.json names groups of this cluster, one instance as controller."""
    yield from request.parameter_problems()
    for uri, content in request.provisioning_parameters:
        controller = content.get("controller_group")
        if controller not in request.counts:
            yield f"controller_group {controller} of {uri} is not an instance group: {_names(request)}"
        elif request.counts[controller] != 1:
            yield f"controller_group {controller} of {uri} must have InstanceCount 1, not {request.counts[controller]}"
        workers = [worker.get("instance_group_name") for worker in content.get("worker_groups") or []]
        if not workers:
            yield f"worker_groups of {uri} is empty"
        others = {
            "worker_groups": workers,
            "login_group": [content["login_group"]] if content.get("login_group") else [],
        }
        for key, names in others.items():
            unknown = [str(name) for name in names if name not in request.counts]
            if unknown:
                yield f"{key} of {uri} names {', '.join(unknown)}, not an instance group: {_names(request)}"


def efa_traffic_passes(request: Request) -> Iterator[str]:
    """Types with EFA need a group that passes all traffic to itself, in and out."""
    for group in request.groups:
        network = group.get("OverrideVpcConfig") or request.model.get("VpcConfig")
        if not network or not request.account.supports_efa(group.get("InstanceType", "")):
            continue
        missing = _directions_without_self_traffic(request, network["SecurityGroupIds"])
        if missing:
            yield (
                f"EFA health checks did not run successfully on {group['InstanceGroupName']}: "
                f"{group['InstanceType']} needs a security group whose {' and '.join(missing)} rules allow all traffic "
                f"from and to the group itself, not {', '.join(network['SecurityGroupIds'])}"
            )


RULES: tuple[Callable[[Request], Iterator[str]], ...] = (
    there_are_groups,
    groups_have_known_types,
    group_names_are_unique,
    network_exists,
    roles_can_be_assumed,
    lifecycle_scripts_exist,
    slurm_has_one_controller,
    efa_traffic_passes,
)


@lru_cache
def instance_types() -> frozenset[str]:
    """HyperPod's instance types, from the service model that boto3 ships."""
    sagemaker = botocore.session.Session().get_service_model("sagemaker")
    return frozenset(sagemaker.shape_for("ClusterInstanceType").enum)


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


def _names(request: Request) -> str:
    return f"the cluster has {', '.join(request.counts)}"
