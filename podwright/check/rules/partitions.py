"""Rules about groups that share a training plan, an image or a Slurm partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from podwright.check.findings import Finding, error, warning
from podwright.check.rules.rule import GROUPS, reads
from podwright.settings.cluster import InstanceGroupSection
from podwright.settings.root import Settings
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError


@reads("cluster.instance_groups.training_plan_arn", "cluster.instance_groups.instance_type")
def type_of_plan(settings: Settings) -> Iterator[Finding]:
    """Groups of several instance types have one training plan, which reserves nodes of one type.

    https://docs.aws.amazon.com/sagemaker/latest/dg/reserve-capacity-with-training-plans.html
    """
    first_group_by_plan: dict[str, InstanceGroupSection] = {}
    for index, group in enumerate(settings.cluster.instance_groups):
        if group.training_plan_arn is None:
            continue
        first_group = first_group_by_plan.setdefault(group.training_plan_arn, group)
        if group.instance_type != first_group.instance_type:
            yield error(
                (*GROUPS, index, "training_plan_arn"),
                f"training_plan_arn: {group.name} has {group.instance_type}, but {first_group.name} has "
                f"{first_group.instance_type} with the same plan",
                "a plan reserves nodes of one type: use a plan for each type",
            )


@reads("cluster.instance_groups.image_id", "cluster.instance_groups.instance_type")
def machine_of_image(settings: Settings) -> Iterator[Finding]:
    """Groups with different processors have one image, which is for one kind of processors.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ComponentsAMIs.html
    """
    first_group_by_image: dict[str, InstanceGroupSection] = {}
    for index, group in enumerate(settings.cluster.instance_groups):
        if group.image_id in {None, "default"} or not _of_types(group, _machine):
            continue
        first_group = first_group_by_image.setdefault(str(group.image_id), group)
        if _of_types(group, _machine) != _of_types(first_group, _machine):
            machine, first_machine = (_listed(_of_types(member, _machine)) for member in (group, first_group))
            yield error(
                (*GROUPS, index, "image_id"),
                f"image_id: {group.name} has processors {machine}, but {first_group.name} has {first_machine} with the "
                "same image",
                "use an image for each kind of processors",
            )


@reads(
    *(f"cluster.instance_groups.{key}" for key in ("role", "partition", "instance_type", "other_instance_types")),
    "cluster.instance_groups.subnet_ids",
)
def mixed_partition(settings: Settings) -> Iterator[Finding]:
    """Groups of one partition differ in processors, accelerators or subnets, so that Slurm may mix them in one job.

    EFA does not reach nodes of another zone: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html#efa-limits
    A job chooses among the nodes of a partition by features alone: https://slurm.schedmd.com/sbatch.html
    """
    first_group_by_partition: dict[str, InstanceGroupSection] = {}
    for index, group in enumerate(settings.cluster.instance_groups):
        if group.role != "compute" or group.partition is None:
            continue
        first_group = first_group_by_partition.setdefault(group.partition, group)
        for difference in _differences(first_group, group):
            yield warning(
                (*GROUPS, index, "partition"),
                f"partition: {first_group.name} and {group.name} are both in {group.partition}, {difference}",
                "give each group its own partition",
            )


def _differences(first_group: InstanceGroupSection, group: InstanceGroupSection) -> Iterator[str]:
    """Yield what a job on both groups would meet, in words."""
    machines = [_of_types(member, _machine) for member in (first_group, group)]
    accelerators = [_of_types(member, lambda kind: kind.accelerator_name or "none") for member in (first_group, group)]
    if all(machines) and machines[0] != machines[1]:
        yield f"with processors {' and '.join(map(_listed, machines))}: a job's programs run on one of them"
    elif all(accelerators) and accelerators[0] != accelerators[1]:
        yield f"with accelerators {' and '.join(map(_listed, accelerators))}: {_on_both(accelerators)}"
    if {*first_group.subnet_ids} != {*group.subnet_ids} and (_has_efa(first_group) or _has_efa(group)):
        yield (
            "with different subnet_ids: if they are in different zones, EFA does not connect the nodes, and a job on "
            "both may hang"
        )


def _on_both(accelerators: Sequence[AbstractSet[str]]) -> str:
    if {"none"} in accelerators:
        return "a job that needs them fails on the other nodes"
    return "a job on both waits for the slower ones"


def _of_types(group: InstanceGroupSection, attribute: Callable[[InstanceType], str]) -> AbstractSet[str]:
    """Return an attribute of a group's instance types; empty if another rule refuses one of them."""
    with suppress(UnknownInstanceTypeError):
        return {attribute(InstanceType.of(name)) for name in (group.instance_type, *group.other_instance_types)}
    return set()


def _machine(kind: InstanceType) -> str:
    return kind.machine


def _has_efa(group: InstanceGroupSection) -> bool:
    return _of_types(group, lambda kind: str(kind.efa_interfaces)) - {"0"} != set()


def _listed(words: AbstractSet[str]) -> str:
    return " or ".join(sorted(words))
