"""Rules of ``podwright check --live``: pure functions from settings and the account's answers to findings.

Each docstring is what `podwright explain CODE` prints: what is asked, when the
rule passes, when it fails, and how to look by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from podwright.check.account import Account
from podwright.check.findings import Finding, KeyPath, error, warning
from podwright.check.rights import rights
from podwright.check.rules import live_network, live_plans
from podwright.check.rules.rule import GROUPS, nodes_by_type
from podwright.settings.access import ExistingRole
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.section import Section
from podwright.settings.storage import ExistingBucket, ExistingLustre, ExistingOpenZfs

Live = Callable[[Settings, "Account"], Iterator[Finding]]
SAGEMAKER = "sagemaker.amazonaws.com"


def cluster_quota(settings: Settings, account: Account) -> Iterator[Finding]:
    """The account may not have so many nodes of a type.

    Asked: SageMaker's quota "TYPE for cluster usage", and the nodes that other clusters of the region have.
    Passes: the file's nodes of a type, with those of other clusters, are within the quota. Groups of a training plan
    and spot groups are not counted.
    Fails: there are more (error), or AWS lists no quota of that name (warning).
    By hand: aws service-quotas list-service-quotas --service-code sagemaker
    --query "Quotas[?QuotaName=='ml.p5.48xlarge for cluster usage'].Value"; increases are asked for there, too.
    """
    quotas = account.quotas()
    nodes_elsewhere: Counter[str] = Counter()
    for cluster, nodes in account.nodes().items():
        if cluster != settings.name:
            nodes_elsewhere += nodes
    groups = settings.cluster.instance_groups
    on_demand = [group for group in groups if not group.training_plan_arn and group.capacity != "spot"]
    for instance_type, count in nodes_by_type(on_demand).items():
        path, quota = _type_path(settings, instance_type), quotas.get(f"{instance_type} for cluster usage")
        if quota is None:
            hint = "look for it in the console: Service Quotas, Amazon SageMaker"
            yield warning(path, f"instance_type: AWS lists no quota {instance_type} for cluster usage", hint)
        elif count + nodes_elsewhere[instance_type] > quota:
            used = (
                f" beside {nodes_elsewhere[instance_type]} in other clusters" if nodes_elsewhere[instance_type] else ""
            )
            yield error(
                path,
                f"instance_type: the quota {instance_type} for cluster usage is {quota:g}, the file has {count}{used}",
                "ask for an increase in Service Quotas, Amazon SageMaker; it can take days",
            )


def provisioning_of_cluster(settings: Settings, account: Account) -> Iterator[Finding]:
    """The cluster runs already and provisions its nodes in another way, which AWS does not change afterwards.

    Asked: the running cluster of the file's name.
    Passes: there is none, or it provisions nodes as node_provisioning says.
    Fails: only one of both is continuous (warning). AWS's page on scaling says that an existing cluster cannot be
    moved to continuous provisioning.
    By hand: aws sagemaker describe-cluster --cluster-name NAME --query NodeProvisioningMode
    """
    cluster = account.cluster(settings.name)
    if cluster is None:
        return
    running, configured = cluster.get("NodeProvisioningMode", ""), settings.cluster.node_provisioning or ""
    if running.lower() != configured:
        yield warning(
            ("cluster", "node_provisioning"),
            f"node_provisioning: {settings.name} runs with {running.lower() or 'no value'}, and AWS does not change it "
            f"to {configured or 'no value'}",
            "undo the edit, or destroy the cluster's stack and deploy it again: file systems and bucket stay",
        )


def zone_offers_type(settings: Settings, account: Account) -> Iterator[Finding]:
    """The zone of a group's subnets does not have its instance type.

    Asked: which of the file's types EC2 offers in the zones of the private subnets, or of a group's own.
    Passes: one of the zones has the type.
    Fails: no zone has it (error).
    By hand: aws ec2 describe-instance-type-offerings --location-type availability-zone-id
    --filters Name=instance-type,Values=p5.48xlarge (the type without ml.).
    """
    groups = settings.cluster.instance_groups
    type_names = sorted({name.removeprefix("ml.") for group in groups for name in group.instance_types})
    for index, group in enumerate(groups):
        zones = _zones_of(group.subnet_ids, account) if group.subnet_ids else zones_of_nodes(settings.network, account)
        offered = set().union(*(account.offered(type_names, zone) for zone in zones))
        if zones and not offered & {name.removeprefix("ml.") for name in group.instance_types}:
            kinds = " or ".join(group.instance_types)
            yield error(
                (*GROUPS, index, "instance_type"),
                f"instance_type: {kinds} is not offered in {' or '.join(zones)}",
                "`podwright explain zone-offers-type` says how to list the zones that have it",
            )


def bucket_in_region(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your bucket does not exist, or is in another region: SageMaker reads scripts in the cluster's own.

    Asked: the bucket's location.
    Passes: it is the file's region.
    Fails: it is another one, or there is no such bucket (error).
    By hand: aws s3api get-bucket-location --bucket NAME (null is us-east-1).
    """
    bucket = settings.bucket
    if not isinstance(bucket, ExistingBucket):
        return
    region = account.bucket_region(bucket.name)
    if region is None:
        yield error(("bucket", "name"), f"name: there is no bucket {bucket.name}", "create it, or use source: create")
    elif region != settings.region:
        message = f"name: the bucket is in {region}, the cluster in {settings.region}"
        yield error(("bucket", "name"), message, f"use a bucket in {settings.region}")


def role_trust(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your role does not exist, or SageMaker may not assume it.

    Asked: the role's trust policy.
    Passes: a statement allows sts:AssumeRole to sagemaker.amazonaws.com.
    Fails: none does, or there is no such role (error). Conditions are ignored.
    By hand: aws iam get-role --role-name NAME --query Role.AssumeRolePolicyDocument
    """
    role = settings.role
    if not isinstance(role, ExistingRole):
        return
    for key, arn in role.arns().items():
        name = arn.rpartition("/")[2]
        policy = account.trust_policy(name)
        if policy is None:
            yield error(("role", key), f"{key}: there is no role {name} in this account", "use a role of this account")
        elif not any(map(_trusts_sagemaker, _listed(policy.get("Statement")))):
            hint = f"allow sts:AssumeRole to {SAGEMAKER} in its trust policy"
            yield error(("role", key), f"{key}: the trust policy of {name} does not let SageMaker assume it", hint)


def role_rights(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your role lacks a permission that the file asks for: secrets, metrics, recorded sessions, mounts or keys.

    Asked: IAM's simulation of the role's policies, for each action on the resources that are known before a deployment.
    Passes: every action is allowed. Conditions on keys of the request may be reported although the request meets them.
    Fails: an action is denied (warning).
    By hand: aws iam simulate-principal-policy --policy-source-arn ARN --action-names ACTION --resource-arns RESOURCE
    """
    for right in rights(settings):
        denied = account.denied(right.role, right.actions, right.resources) if right.resources else []
        if denied:
            name, actions = right.role.rpartition("/")[2], ", ".join(denied)
            message = f"{right.key}: {name} may not {actions} {right.on}"
            yield warning(("role", right.key), message, f"allow it on {', '.join(right.resources)}")


def file_system_available(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your file system does not exist, is not available, or differs from what the file describes.

    Asked: the file system, by the id in its DNS name.
    Passes: it is available, and its mount name and VPC are the file's.
    Fails: it does not exist or is not available, or its mount name differs (error); it is in another VPC, which must
    be peered (warning).
    By hand: aws fsx describe-file-systems --file-system-ids fs-…
    """
    for word, file_system in (("lustre", settings.lustre), ("openzfs", settings.openzfs)):
        if isinstance(file_system, ExistingLustre | ExistingOpenZfs):
            file_system_id = file_system.dns_name.partition(".")[0]
            yield from _file_system(word, file_system, account.file_system(file_system_id), settings.network)


def _file_system(
    word: str, file_system: ExistingLustre | ExistingOpenZfs, description: Mapping[str, Any] | None, network: Section
) -> Iterator[Finding]:
    path = (word, "dns_name")
    if description is None:
        message = f"dns_name: there is no file system {file_system.dns_name.partition('.')[0]}"
        yield error(path, message, "look in the cluster's region, in this account")
        return
    if description["Lifecycle"] not in {"AVAILABLE", "UPDATING"}:
        yield error(
            path, f"dns_name: {description['FileSystemId']} is {description['Lifecycle']}", "wait until it is AVAILABLE"
        )
    mount_name = description.get("LustreConfiguration", {}).get("MountName")
    if isinstance(file_system, ExistingLustre) and mount_name != file_system.mount_name:
        message = f"mount_name: {description['FileSystemId']} has {mount_name or 'no mount name: it is not Lustre'}"
        yield error((word, "mount_name"), message, f"write {mount_name}" if mount_name else "use a Lustre file system")
    if isinstance(network, ExistingNetwork | CreatedSubnet) and description["VpcId"] != network.vpc_id:
        message = (
            f"dns_name: {description['FileSystemId']} is in {description['VpcId']}, the nodes are in {network.vpc_id}"
        )
        yield warning(path, message, "use a file system of that VPC, or peer the two")


RULES: tuple[Live, ...] = (
    cluster_quota,
    provisioning_of_cluster,
    zone_offers_type,
    live_plans.training_plans,
    live_network.network_exists,
    live_network.security_group_rules,
    live_network.free_addresses,
    live_network.new_subnet_fits,
    live_network.vpc_dns,
    live_network.s3_route,
    bucket_in_region,
    role_trust,
    role_rights,
    file_system_available,
)


def zones_of_nodes(network: Section, account: Account) -> list[str]:
    """Return the ids of the zones that nodes can be in."""
    if isinstance(network, ExistingNetwork):
        return _zones_of(network.subnet_ids, account)
    if isinstance(network, CreatedNetwork):
        extra = (subnet.availability_zone_id for subnet in network.extra_private_subnets)
        return list(dict.fromkeys([network.availability_zone_id, *extra]))
    return [network.availability_zone_id] if isinstance(network, CreatedSubnet) else []


def _zones_of(subnet_ids: Sequence[str], account: Account) -> list[str]:
    return sorted({subnet["AvailabilityZoneId"] for subnet in account.subnets(subnet_ids).values()})


def _type_path(settings: Settings, instance_type: str) -> KeyPath:
    """Return the first path that names the type."""
    types = [group.instance_type for group in settings.cluster.instance_groups]
    return (*GROUPS, types.index(instance_type), "instance_type")


def _trusts_sagemaker(statement: Mapping[str, Any]) -> bool:
    principal = statement.get("Principal")
    services = _listed(principal.get("Service")) if isinstance(principal, Mapping) else []
    actions = {action.lower() for action in _listed(statement.get("Action"))}
    allowed = statement.get("Effect") == "Allow" and bool(actions & {"sts:assumerole", "sts:*", "*"})
    return allowed and SAGEMAKER in services


def _listed(value: Any) -> list[Any]:
    """IAM writes a list of one as its item."""
    return value if isinstance(value, list) else [] if value is None else [value]
