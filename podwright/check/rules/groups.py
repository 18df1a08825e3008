"""Rules about single instance groups and their composition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from podwright.check.findings import Finding, KeyPath, error, finding_of, findings_of, warning
from podwright.check.rules.rule import (
    GROUPS,
    OWN_SCRIPTS,
    findings_of_arguments,
    findings_of_section,
    for_each_group,
    problems_of,
    reads,
    scripts_in_place_of_ours,
    valid_items,
)
from podwright.settings.cluster import ApiSlurm, ClusterSection, ExistingScripts, InstanceGroupSection, LifecycleSlurm
from podwright.settings.network import ExistingNetwork
from podwright.settings.operations import DatabaseAccounting
from podwright.settings.root import Settings
from podwright_constructs import checks
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError
from podwright_constructs.problems import Problem


def instance_group(settings: Settings) -> Iterator[Finding]:
    """SageMaker refuses an instance group's name, type, count, partition or volume."""
    for path, group in valid_items(settings, GROUPS, settings.cluster.instance_groups):
        yield from findings_of_section(settings, path, group, checks.instance_group)


@for_each_group("role", "name", "partition")
def compute_partition(group: InstanceGroupSection, path: KeyPath) -> Iterator[Finding]:
    """A compute group has no Slurm partition; jobs are submitted to partitions."""
    if group.role == "compute" and group.partition is None:
        yield error(path, f"compute group {group.name} has no partition", "add `partition: NAME`, such as gpu")


def group_composition(settings: Settings) -> Iterator[Finding]:
    """A cluster has one controller group, a compute group, and names that differ."""

    def check(cluster: ClusterSection) -> list[Problem]:
        return checks.instance_group_composition(cluster.instance_groups)

    yield from findings_of_section(settings, ("cluster",), settings.cluster, check)


@reads("network.source", "network.security_group_id")
def extra_security_groups(settings: Settings) -> Iterator[Finding]:
    """The additional security groups of the nodes are malformed or too many, or one is the network's own.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_VpcConfig.html
    """
    group_ids = settings.cluster.extra_security_group_ids
    yield from findings_of(("cluster",), checks.extra_security_groups(group_ids))
    network = settings.network
    if isinstance(network, ExistingNetwork) and network.security_group_id in group_ids:
        path = ("cluster", "extra_security_group_ids", group_ids.index(network.security_group_id))
        message = f"extra_security_group_ids: {network.security_group_id} is the network's own"
        yield error(path, message, "delete it: nodes have it anyway")
    yield from _without_extra_groups(settings)


@reads("cluster.extra_security_group_ids")
def _without_extra_groups(settings: Settings) -> Iterator[Finding]:
    """Report instance groups whose own security groups take the place of the cluster's, the additional ones too."""
    for path, group in valid_items(settings, GROUPS, settings.cluster.instance_groups, "name", "security_group_ids"):
        omitted = [id_ for id_ in settings.cluster.extra_security_group_ids if id_ not in group.security_group_ids]
        if group.security_group_ids and omitted:
            yield warning(
                (*path, "security_group_ids"),
                f"security_group_ids: nodes of {group.name} have these in place of the cluster's, so they do not have "
                f"{', '.join(omitted)} of extra_security_group_ids",
                "write them here too, if these nodes need them, such as for a license server",
            )


@reads(*OWN_SCRIPTS)
def types_with_bundle(settings: Settings) -> Iterator[Finding]:
    """A group has several instance types, but podwright's lifecycle scripts check the hardware of one."""
    if settings.has_own_scripts:
        yield from findings_of(("cluster",), checks.types_with_bundle(settings.cluster.instance_groups))


@reads("accounting.source", "cluster.slurm.source")
def multi_head(settings: Settings) -> Iterator[Finding]:
    """Several controllers need an external accounting database: a local one is lost with its controller."""
    if isinstance(settings.accounting, DatabaseAccounting) or not isinstance(settings.cluster.slurm, LifecycleSlurm):
        return
    for path, group in valid_items(settings, GROUPS, settings.cluster.instance_groups, "role"):
        if group.role == "controller" and group.count > 1:
            message = f"count: {group.count} controllers need an external database, got accounting.source: "
            hint = "write `accounting: {source: create, …}` or `{source: existing, …}`, or use 1 controller"
            yield error((*path, "count"), message + settings.accounting.source, hint)


def api_slurm(settings: Settings) -> Iterator[Finding]:
    """Slurm set up by the API conflicts with this strategy or provisioning."""
    path: KeyPath = ("cluster", "slurm")
    slurm = settings.cluster.slurm
    if not isinstance(slurm, ApiSlurm):
        return

    def check(cluster: ClusterSection) -> list[Problem]:
        return checks.api_slurm(
            strategy=cluster.slurm.strategy if isinstance(cluster.slurm, ApiSlurm) else None,
            node_provisioning=cluster.node_provisioning,
            with_accounting=isinstance(settings.accounting, DatabaseAccounting),
            instance_groups=cluster.instance_groups,
        )

    for problem in problems_of(settings, ("cluster",), settings.cluster, check):
        elsewhere = {"accounting": ("accounting", "source"), "instance_groups": ("cluster", *problem.path)}
        yield finding_of(elsewhere.get(str(problem.path[0]), (*path, *problem.path)), problem)
    if slurm.init_script:
        yield from findings_of_arguments(settings, (*path, "init_script"), slurm.init_script, checks.init_script)


def existing_scripts(settings: Settings) -> Iterator[Finding]:
    """The address of existing lifecycle scripts is not one that SageMaker reads."""
    slurm = settings.cluster.slurm
    if isinstance(slurm, ExistingScripts):
        check = checks.existing_lifecycle_scripts
        yield from findings_of_arguments(settings, ("cluster", "slurm"), slurm, check)


def training_without_scripts(settings: Settings) -> Iterator[Finding]:
    """The training program is installed by podwright's lifecycle scripts, but nodes run scripts of yours."""
    if settings.training.source == "bundled" and not settings.has_own_scripts:
        scripts, instead = scripts_in_place_of_ours(settings)
        message = (
            f"source: got bundled, but nodes run the scripts of {scripts}, which do not install the training program"
        )
        yield error(("training", "source"), message, f"write `training: {{source: none}}`, or {instead}")


@for_each_group("role", "name", "capacity")
def spot_head(group: InstanceGroupSection, path: KeyPath) -> Iterator[Finding]:
    """AWS can reclaim a controller or login node on spot capacity, and with it the queue or users' work."""
    if group.role != "compute" and group.capacity == "spot":
        yield warning(
            (*path, "capacity"),
            f"capacity: AWS can reclaim spot nodes of the {group.role} group {group.name}",
            "use on-demand for this group",
        )


@for_each_group("role", "name", "instance_type")
def controller_accelerator(group: InstanceGroupSection, path: KeyPath) -> Iterator[Finding]:
    """A controller has accelerators, which no job can use: Slurm starts jobs on compute nodes.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-distributed-training-workload.html
    """
    if group.role != "controller":
        return
    with suppress(UnknownInstanceTypeError):
        if InstanceType.of(group.instance_type).accelerator:
            message = f"instance_type: no job can use the accelerators of {group.instance_type} in {group.name}"
            yield warning((*path, "instance_type"), message, "use a type without accelerators, such as ml.m5.2xlarge")
