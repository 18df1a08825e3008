"""Check one instance group against SageMaker's limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from podwright_constructs import facts
from podwright_constructs.arguments.instance_group import (
    AUTO_PATCHES,
    CAPACITIES,
    DEEP_HEALTH_CHECKS,
    NETWORK_INTERFACES,
    ROLES,
    InstanceGroup,
    ScheduledUpdate,
)
from podwright_constructs.catalog import InstanceType, cluster_instance_types, name_hint
from podwright_constructs.checks.words import (
    choice,
    duplicate_problems,
    is_reference,
    item_problems,
    key_arn_problems,
    matches,
    name_problems,
    one_of,
    resource_id_problems,
    within,
)
from podwright_constructs.problems import Problem

CONNECTIVITY = "instance-connectivity"


def instance_group(group: InstanceGroup) -> list[Problem]:
    """Check one group; the paths of its problems begin at the group."""
    return [
        *name_problems("name", group.name, facts.MAX_CLUSTER_NAME_LENGTH),
        *_choices(group),
        *_counts(group),
        *within("volume_gib", group.volume_gib, 0, facts.MAX_VOLUME_GIB),
        *key_arn_problems(group.key_arn),
        *_partition(group),
        *_instance_type(group),
        *_training_plan(group),
        *_network(group),
        *_updates(group),
    ]


def _choices(group: InstanceGroup) -> Iterator[Problem]:
    yield from choice("role", group.role, ROLES)
    yield from choice("capacity", group.capacity, CAPACITIES)
    yield from choice("network_interface", group.network_interface, NETWORK_INTERFACES)
    yield from choice("auto_patch", group.auto_patch, AUTO_PATCHES)
    for index, check in enumerate(group.deep_health_checks):
        yield from choice(("deep_health_checks", index), check, DEEP_HEALTH_CHECKS)


def _counts(group: InstanceGroup) -> Iterator[Problem]:
    minimum = facts.MIN_INSTANCE_COUNT if group.role == "compute" else 1
    allowed = "1 or more" if group.role == "controller" else f"{minimum} to {facts.MAX_INSTANCE_COUNT}"
    need = f"{allowed} for a {group.role} group"
    yield from within("count", group.count, minimum, facts.MAX_INSTANCE_COUNT, need)
    if CONNECTIVITY in group.deep_health_checks and 0 < group.count < facts.MIN_CONNECTIVITY_NODES:
        need = f"{facts.MIN_CONNECTIVITY_NODES} or more with {CONNECTIVITY}"
        yield Problem("conflict", ("count",), group.count, need, "It tests the traffic between two nodes.")
    yield from within("min_count", group.min_count, 0, group.count, f"0 to the count, {group.count}")


def _partition(group: InstanceGroup) -> Iterator[Problem]:
    if group.role != "compute":
        if group.partition is not None:
            need = f"no value for a {group.role} group"
            yield Problem("conflict", ("partition",), group.partition, need, "Only compute groups join a partition.")
        return
    name = group.partition or group.name
    if group.partition is not None and not facts.PARTITION_PATTERN.fullmatch(group.partition):
        need = "letters, digits, dots, hyphens and underscores, a letter or digit first and last"
        yield Problem("malformed", ("partition",), group.partition, need)
    if name.lower() in facts.RESERVED_PARTITIONS:
        need = f"a name other than {one_of(facts.RESERVED_PARTITIONS)}"
        yield Problem("choice", ("partition",), name, need, "HyperPod and Slurm reserve these names.")


def _instance_type(group: InstanceGroup) -> Iterator[Problem]:
    yield from _known_type(("instance_type",), group.instance_type)
    for index, name in enumerate(group.other_instance_types):
        yield from _known_type(("other_instance_types", index), name)
    if len(group.instance_types) > facts.MAX_INSTANCE_TYPES:
        value = f"{len(group.other_instance_types)} types"
        yield Problem("size", ("other_instance_types",), value, f"at most {facts.MAX_INSTANCE_TYPES - 1}")
    for index, name in enumerate(group.other_instance_types):
        if name in group.instance_types[: index + 1]:
            yield Problem("duplicate", ("other_instance_types", index), name, "each type once")
    for name in dict.fromkeys(group.instance_types):
        if name in cluster_instance_types():
            yield from _hardware(group, InstanceType.of(name))
    yield from _machines(group)


def _machines(group: InstanceGroup) -> Iterator[Problem]:
    """Check that all types have one kind of processors: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ComponentsAMIs.html."""
    known_types = cluster_instance_types()
    if group.instance_type not in known_types:
        return
    machine = InstanceType.of(group.instance_type).machine
    for index, name in enumerate(group.other_instance_types):
        if name in known_types and InstanceType.of(name).machine != machine:
            hint = f"All nodes of a group start from one image, and {group.instance_type} needs one for {machine}."
            need = f"types with processors {machine}"
            yield Problem("conflict", ("other_instance_types", index), name, need, hint)


def _known_type(path: tuple[str | int, ...], name: str) -> Iterator[Problem]:
    yield from item_problems(path, name)
    if name not in cluster_instance_types() and not is_reference(name):
        yield Problem("choice", path, name, "a type that SageMaker accepts in a cluster", name_hint(name))


def _hardware(group: InstanceGroup, kind: InstanceType) -> Iterator[Problem]:
    """Check arguments that depend on the hardware of a type."""
    threads = range(facts.MIN_THREADS_PER_CORE, kind.max_threads_per_core + 1)
    yield from choice("threads_per_core", group.threads_per_core, threads, f" on {kind.name}")
    if group.deep_health_checks and not kind.accelerator:
        need, hint = f"no checks on {kind.name}", "They test accelerators and EFA, and the type has no accelerator."
        yield Problem("conflict", ("deep_health_checks",), ", ".join(group.deep_health_checks), need, hint)
    if group.network_interface is not None and not kind.efa_interfaces:
        need = f"no value on {kind.name}"
        yield Problem("conflict", ("network_interface",), group.network_interface, need, "The type has no EFA.")


def _training_plan(group: InstanceGroup) -> Iterator[Problem]:
    if group.training_plan_arn is None:
        return
    need = "an ARN like arn:aws:sagemaker:us-west-2:123456789012:training-plan/NAME"
    yield from matches("training_plan_arn", group.training_plan_arn, facts.TRAINING_PLAN_ARN_PATTERN, need)
    if group.instance_type in cluster_instance_types() and group.instance_type not in facts.TRAINING_PLAN_TYPES:
        hint = f"AWS reserves {one_of(facts.TRAINING_PLAN_TYPES)} in training plans."
        yield Problem("conflict", ("training_plan_arn",), "a plan", f"no value on {group.instance_type}", hint)
    if group.other_instance_types:
        need, hint = "no value beside training_plan_arn", "A training plan reserves nodes of one type."
        yield Problem("conflict", ("other_instance_types",), ", ".join(group.other_instance_types), need, hint)
    if group.capacity == "spot":
        need, hint = "no value beside training_plan_arn", "A training plan is capacity that you have reserved."
        yield Problem("conflict", ("capacity",), group.capacity, need, hint)


def _network(group: InstanceGroup) -> Iterator[Problem]:
    need = "an id like ami-0123456789abcdef0, or default"
    yield from matches("image_id", group.image_id, facts.IMAGE_ID_PATTERN, need)
    if group.security_group_ids and not group.subnet_ids:
        hint = "A group without subnets of its own is in the cluster's network, with the cluster's security group."
        value = ", ".join(group.security_group_ids)
        yield Problem("conflict", ("security_group_ids",), value, "subnet_ids too", hint)
    yield from _ids("subnet_ids", group.subnet_ids, "subnet", maximum=facts.MAX_SUBNETS)
    yield from _ids("security_group_ids", group.security_group_ids, "sg", maximum=facts.MAX_SECURITY_GROUPS)


def _ids(argument: str, ids: Sequence[str], prefix: str, *, maximum: int) -> Iterator[Problem]:
    if len(ids) > maximum:
        yield Problem("size", (argument,), f"{len(ids)} ids", f"at most {maximum}")
    for index, resource_id in enumerate(ids):
        yield from resource_id_problems((argument, index), resource_id, prefix)
    yield from duplicate_problems(argument, ids)


def _updates(group: InstanceGroup) -> Iterator[Problem]:
    update = group.scheduled_update
    if update is None:
        return
    if group.auto_patch is not None:
        hint = "Both decide when a node gets a new image."
        yield Problem("conflict", ("auto_patch",), group.auto_patch, "no value beside scheduled_update", hint)
    yield from (problem.below("scheduled_update") for problem in _scheduled_update(update))


def _days(schedule: str) -> Iterator[Problem]:
    """Check that a day is given once and comes: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-cron-expressions.html."""
    fields = facts.UPDATE_SCHEDULE_PATTERN.fullmatch(schedule)
    if fields is None:
        return
    day, month = fields["day"], fields["month"]
    if (day == "?") == (fields["weekday"] == "?"):
        need = "? as the day of the month or as the day of the week"
        yield Problem("conflict", ("schedule",), schedule, need, "One of the two must be ?.")
    elif day.isdigit() and month.isdigit() and int(day) > facts.DAYS_OF_SHORT_MONTHS.get(int(month), 31):
        need = f"a day up to {facts.DAYS_OF_SHORT_MONTHS[int(month)]} in month {month}"
        yield Problem("range", ("schedule",), schedule, need, "That day never comes.")


def _scheduled_update(update: ScheduledUpdate) -> Iterator[Problem]:
    need = "cron(MINUTE HOUR DAY MONTH WEEKDAY YEAR), such as cron(0 3 ? * SUN *)"
    hint = "Minute and hour are numbers, the day is a number or ?, the weekday is one day, L or ?."
    malformed = matches("schedule", update.schedule, facts.UPDATE_SCHEDULE_PATTERN, need, hint)
    yield from malformed or _days(update.schedule)
    for percent, count in (("max_percent", "max_count"), ("rollback_max_percent", "rollback_max_count")):
        yield from within(percent, getattr(update, percent), 1, 100)
        yield from within(count, getattr(update, count), 1, facts.MAX_INSTANCE_COUNT)
        if None not in {getattr(update, percent), getattr(update, count)}:
            yield Problem("conflict", (count,), getattr(update, count), f"no value beside {percent}")
    rollback = update.rollback_max_percent or update.rollback_max_count
    if rollback and not (update.max_percent or update.max_count):
        hint = "SageMaker takes the size of a rollback's batches together with the update's."
        rollback_key = "rollback_max_percent" if update.rollback_max_percent else "rollback_max_count"
        yield Problem("missing", (rollback_key,), rollback, "max_percent or max_count too", hint)
    yield from within("wait_s", update.wait_s, 0, facts.MAX_UPDATE_WAIT_S)
    for index, alarm in enumerate(update.rollback_alarms):
        need = "the name of an alarm, 1 to 255 characters"
        yield from matches(("rollback_alarms", index), alarm, facts.ALARM_NAME_PATTERN, need)
    if len(update.rollback_alarms) > facts.MAX_ROLLBACK_ALARMS:
        rollback_key = f"{len(update.rollback_alarms)} alarms"
        yield Problem("size", ("rollback_alarms",), rollback_key, f"at most {facts.MAX_ROLLBACK_ALARMS}")
