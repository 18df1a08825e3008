"""The HyperPod cluster itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from constructs import Construct

from podwright_bootstrap.contract import CLUSTER_DIMENSION, METRICS_NAMESPACE, RUNNING_JOBS_METRIC
from podwright_constructs import checks
from podwright_constructs.arguments import passed
from podwright_constructs.aws.cloudcontrolapi_resource import CloudcontrolapiResource
from podwright_constructs.bindings import without_none
from podwright_constructs.cluster_properties import create_only
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.instance_group import InstanceGroup, ScheduledUpdate, in_order
from podwright_constructs.kit import Fn
from podwright_constructs.lifecycle import LifecycleBundle, LifecycleScripts
from podwright_constructs.metric import Metric
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import Problem, refuse
from podwright_constructs.replacement_guard import ReplacementGuard
from podwright_constructs.role import GrantedRole, Role
from podwright_constructs.slurm import ApiSlurm, NodeScripts

__all__ = ["HyperPodCluster", "InstanceGroup", "ScheduledUpdate"]

TIMEOUT = "720m"  # AWS's own handlers may take as long.


class HyperPodCluster(CheckedConstruct):
    """A SageMaker HyperPod cluster orchestrated by Slurm, set up by lifecycle scripts or by the API, never by both.

    The AWS provider has no resource of its own for it: Cloud Control takes AWS's CloudFormation schema.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sagemaker-cluster.html

    Args:
        scope: The scope of the construct.
        id_: The id of the construct.
        cluster_name: Name, unique in account and region.
        instance_groups: Groups in any order; a plan shows only the group that changes.
        network: The nodes are in its first subnet, so in one zone; a group may have subnets of its own.
        role: The nodes' IAM role.
        controller_role: The controllers' role, which may read secrets that no job may read. Default: ``role``.
        login_role: The login nodes' role. Default: ``role``.
        lifecycle: The scripts that set Slurm up.
        slurm: Slurm's configuration through the API, instead of ``lifecycle``.
        node_recovery: automatic replaces or reboots a node with a hardware fault.
        node_provisioning: continuous starts with the available nodes and keeps trying for the others.
        multi_head: Allow several controllers; ``lifecycle`` configures their database and directory.
        extra_security_group_ids: Security groups that nodes have beside the network's.
        tags: Tags of the cluster.

    Raises:
        InvalidArgumentsError: AWS would refuse the cluster or one of its groups; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        cluster_name: str,
        instance_groups: Sequence[InstanceGroup],
        network: Network,
        role: Role,
        controller_role: Role | None = None,
        login_role: Role | None = None,
        lifecycle: LifecycleScripts | None = None,
        slurm: ApiSlurm | None = None,
        node_recovery: Literal["automatic", "none"] = "automatic",
        node_provisioning: Literal["continuous"] | None = None,
        multi_head: bool = False,
        extra_security_group_ids: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        problems = checks.cluster(
            cluster_name=cluster_name,
            instance_groups=instance_groups,
            node_recovery=node_recovery,
            tags=tags or {},
            node_provisioning=node_provisioning,
            multi_head=multi_head,
            extra_security_group_ids=extra_security_group_ids,
        )
        refuse(self, [*problems, *_mode(lifecycle, slurm, instance_groups, node_provisioning)])
        super().__init__(scope, id_)
        _protect(lifecycle or (slurm.init_script if slurm else None), (role, controller_role, login_role))
        roles = {"controller": controller_role or role, "login": login_role or role, "compute": role}
        security_group_ids = [network.security_group_id, *extra_security_group_ids]
        groups = [
            {**_instance_group(group, security_group_ids, roles[group.role]), **_set_up(group, lifecycle, slurm)}
            for group in in_order(instance_groups)
        ]
        desired_state = {
            "ClusterName": cluster_name,
            "InstanceGroups": groups,
            "NodeRecovery": node_recovery.capitalize(),
            "NodeProvisioningMode": node_provisioning and node_provisioning.capitalize(),
            "Orchestrator": slurm and slurm.orchestrator(),
            "Tags": [{"Key": key, "Value": value} for key, value in sorted((tags or {}).items())],
            "VpcConfig": {"SecurityGroupIds": security_group_ids, "Subnets": [network.subnet_ids[0]]},
        }
        scripts = [*(lifecycle.ready if lifecycle else ()), *(slurm.ready if slurm else ())]
        permissions = [permission for node_role in roles.values() for permission in node_role.ready]
        dependencies = [*network.security_group_rules, *network.routes, *permissions, *scripts]
        cluster = CloudcontrolapiResource(
            self,
            "cluster",
            type_name="AWS::SageMaker::Cluster",
            desired_state=Fn.jsonencode(without_none(desired_state)),
            timeouts={"create": TIMEOUT, "update": TIMEOUT, "delete": TIMEOUT},
            depends_on=before(self, dependencies),
        )
        ReplacementGuard(
            self,
            "replacement_guard",
            resource=cluster,
            properties=create_only(desired_state),
            consequence="ends all jobs",
        )
        self.cluster, self.name = cluster, cluster_name
        self.arn = cluster.id  # Cloud Control identifies a cluster by its ARN
        self.id = Fn.element(Fn.split("/", self.arn), 1)

    def metric_running_jobs(self) -> Metric:
        """Return the number of Slurm jobs that run, where the controller publishes it."""
        return Metric(
            namespace=METRICS_NAMESPACE,
            name=RUNNING_JOBS_METRIC,
            dimensions={CLUSTER_DIMENSION: self.name},
            statistic="Maximum",
        )


def _protect(scripts: LifecycleScripts | NodeScripts | None, roles: Sequence[Role | None]) -> None:
    """Deny the nodes' roles that receive grants to write what nodes run as root."""
    if scripts is None:
        return
    prefixes = getattr(scripts, "run_by_nodes", [scripts.source_s3_uri.removeprefix("s3://").rstrip("/")])
    for role in {id(item): item for item in roles if isinstance(item, GrantedRole)}.values():
        role.never_write(prefixes)


def _mode(
    lifecycle: LifecycleScripts | None,
    slurm: ApiSlurm | None,
    groups: Sequence[InstanceGroup],
    node_provisioning: str | None,
) -> Iterator[Problem]:
    if (lifecycle is None) == (slurm is None):
        passed_arguments = "neither" if slurm is None else "both"
        yield Problem(
            "conflict", ("slurm",), passed_arguments, "lifecycle or slurm", "They are two ways of setting Slurm up."
        )
    elif slurm:
        yield from _script_mode("slurm", slurm.init_script, by_api=True)
        yield from checks.api_slurm(
            strategy=slurm.strategy,
            node_provisioning=node_provisioning,
            with_accounting=slurm.accounting is not None,
            instance_groups=groups,
        )
    else:
        yield from _script_mode("lifecycle", lifecycle, by_api=False)


def _script_mode(argument: str, scripts: object, *, by_api: bool) -> Iterator[Problem]:
    if isinstance(scripts, LifecycleBundle) and scripts.by_api != by_api:
        hint = "A bundle is made for one of the two ways of setting Slurm up."
        passed_bundle, needed_bundle = (
            f"a LifecycleBundle with slurm_by_api={value}" for value in (scripts.by_api, by_api)
        )
        yield Problem("conflict", (argument,), passed_bundle, needed_bundle, hint)


def _instance_group(group: InstanceGroup, security_group_ids: Sequence[str], role: Role) -> dict[str, Any]:
    return {
        **passed(group),
        **_types(group),
        "ExecutionRole": role.arn,
        "CapacityRequirements": group.capacity and {_api_word(group.capacity): {}},
        "OnStartDeepHealthChecks": [_api_word(check) for check in group.deep_health_checks] or None,
        "NetworkInterface": group.network_interface and {"InterfaceType": group.network_interface},
        "OverrideVpcConfig": _own_network(group, security_group_ids),
        "AutoPatchConfig": group.auto_patch and {"PatchingStrategy": _api_word(group.auto_patch)},
        "ScheduledUpdateConfig": group.scheduled_update and _scheduled_update(group.scheduled_update),
    }


def _types(group: InstanceGroup) -> dict[str, Any]:
    if group.other_instance_types:
        return {"InstanceRequirements": {"InstanceTypes": list(group.instance_types)}}
    return {"InstanceType": group.instance_type}


def _set_up(group: InstanceGroup, lifecycle: LifecycleScripts | None, slurm: ApiSlurm | None) -> dict[str, Any]:
    """Return the part of a group that sets Slurm and its storage up."""
    if slurm:
        return {**slurm.instance_group(group), "InstanceStorageConfigs": [*_volumes(group), *slurm.storage()] or None}
    scripts = lifecycle and {"SourceS3Uri": lifecycle.source_s3_uri, "OnCreate": lifecycle.on_create}
    return {"LifeCycleConfig": scripts, "InstanceStorageConfigs": _volumes(group) or None}


def _volumes(group: InstanceGroup) -> list[dict[str, Any]]:
    additional = {"VolumeSizeInGB": group.volume_gib, "VolumeKmsKeyId": group.key_arn}
    root = {"RootVolume": True, "VolumeKmsKeyId": group.key_arn}  # its size is AWS's
    volumes = [*([additional] if group.volume_gib else []), *([root] if group.key_arn else [])]
    return [{"EbsVolumeConfig": volume} for volume in volumes]


def _own_network(group: InstanceGroup, security_group_ids: Sequence[str]) -> dict[str, list[str]] | None:
    if not group.subnet_ids:
        return None
    return {"SecurityGroupIds": list(group.security_group_ids or security_group_ids), "Subnets": list(group.subnet_ids)}


def _scheduled_update(update: ScheduledUpdate) -> dict[str, Any]:
    policy = {
        "MaximumBatchSize": _batch(update.max_percent, update.max_count),
        "RollbackMaximumBatchSize": _batch(update.rollback_max_percent, update.rollback_max_count),
    }
    deployment = {
        "RollingUpdatePolicy": without_none(policy) or None,
        "WaitIntervalInSeconds": update.wait_s or None,
        "AutoRollbackConfiguration": [{"AlarmName": name} for name in update.rollback_alarms] or None,
    }
    return {**passed(update), "DeploymentConfig": without_none(deployment) or None}


def _batch(percent: int | None, count: int | None) -> dict[str, Any] | None:
    if percent:
        return {"Type": "CAPACITY_PERCENTAGE", "Value": percent}
    return {"Type": "INSTANCE_COUNT", "Value": count} if count else None


def _api_word(word: str) -> str:
    """The API's spelling of ours: ``when-idle`` is ``WhenIdle``."""
    return "".join(part.capitalize() for part in word.split("-"))
