"""What SageMaker would refuse of one instance group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from podwright_constructs import facts
from podwright_constructs.catalog import InstanceType, cluster_instance_types, similar_names
from podwright_constructs.checks.words import matches, name_problems, one_of
from podwright_constructs.instance_group import (
    AUTO_PATCHES,
    CAPACITIES,
    DEEP_HEALTH_CHECKS,
    NETWORK_INTERFACES,
    ROLES,
    InstanceGroup,
    ScheduledUpdate,
)
from podwright_constructs.problems import Problem


def instance_group(group: InstanceGroup) -> list[Problem]:
    """Problems of one group, its arguments named without a prefix."""
    return [
        *name_problems("name", group.name, facts.MAX_CLUSTER_NAME_LENGTH),
        *_words(group),
        *_counts(group),
        *_volume(group),
        *_partition(group),
        *_instance_type(group),
        *_placement(group),
        *_updates(group),
    ]


def _words(group: InstanceGroup) -> Iterator[Problem]:
    """Arguments that know a few words only."""
    choices: dict[str, tuple[tuple[str, ...], str | None]] = {
        "role": (ROLES, group.role),
        "capacity": (CAPACITIES, group.capacity),
        "network_interface": (NETWORK_INTERFACES, group.network_interface),
        "auto_patch": (AUTO_PATCHES, group.auto_patch),
    }
    choices |= {
        f"deep_health_checks[{index}]": (DEEP_HEALTH_CHECKS, given)
        for index, given in enumerate(group.deep_health_checks)
    }
    for argument, (allowed, given) in choices.items():
        if given is not None and given not in allowed:
            yield Problem(argument, given, one_of(allowed))


def _counts(group: InstanceGroup) -> Iterator[Problem]:
    least = facts.MIN_INSTANCE_COUNT if group.role == "compute" else 1
    if not least <= group.count <= facts.MAX_INSTANCE_COUNT:
        allowed = "1 or more" if group.role == "controller" else f"{least} to {facts.MAX_INSTANCE_COUNT}"
        yield Problem("count", group.count, f"{allowed} for a {group.role} group")
    if group.min_count is not None and not 0 <= group.min_count <= group.count:
        yield Problem("min_count", group.min_count, f"0 to the count, {group.count}")


def _volume(group: InstanceGroup) -> Iterator[Problem]:
    if not facts.MIN_VOLUME_GIB <= group.volume_gib <= facts.MAX_VOLUME_GIB:
        yield Problem("volume_gib", group.volume_gib, f"{facts.MIN_VOLUME_GIB} to {facts.MAX_VOLUME_GIB}")
    if group.key_arn is not None:
        yield from matches("key_arn", group.key_arn, facts.KEY_ARN_PATTERN, "an ARN like arn:aws:kms:…:key/…")


def _partition(group: InstanceGroup) -> Iterator[Problem]:
    if group.role != "compute":
        if group.partition is not None:
            hint = f"Only compute groups join a partition, not {group.role}."
            yield Problem("partition", group.partition, "none", hint)
        return
    name = group.partition or group.name
    if group.partition and not facts.CLUSTER_NAME_PATTERN.fullmatch(group.partition):
        yield Problem("partition", group.partition, "letters, digits and hyphens, no hyphen first or last")
    if name.lower() in facts.RESERVED_PARTITIONS:
        reserved = one_of(facts.RESERVED_PARTITIONS)
        yield Problem("partition", name, f"any name but {reserved}", "HyperPod and Slurm use these themselves.")


def _instance_type(group: InstanceGroup) -> Iterator[Problem]:
    if group.instance_type not in cluster_instance_types():
        similar = " or ".join(similar_names(group.instance_type))
        hint = f"Did you mean {similar}?" if similar else "Names look like ml.p5.48xlarge."
        yield Problem("instance_type", group.instance_type, "a type that SageMaker accepts in a cluster", hint)
        return
    kind = InstanceType.of(group.instance_type)
    most = kind.max_threads_per_core
    if not facts.MIN_THREADS_PER_CORE <= group.threads_per_core <= most:
        allowed = f"{one_of(range(facts.MIN_THREADS_PER_CORE, most + 1))} on {kind.name}"
        yield Problem("threads_per_core", group.threads_per_core, allowed)
    if group.deep_health_checks and not kind.accelerator:
        hint = f"They test accelerators and EFA; {kind.name} has no accelerator."
        yield Problem("deep_health_checks", one_of(group.deep_health_checks), "none", hint)
    if group.network_interface is not None and not kind.efa_interfaces:
        yield Problem("network_interface", group.network_interface, "none", f"{kind.name} has no EFA.")


def _placement(group: InstanceGroup) -> Iterator[Problem]:
    if group.training_plan_arn is not None:
        allowed = "an ARN like arn:aws:sagemaker:us-west-2:123456789012:training-plan/NAME"
        yield from matches("training_plan_arn", group.training_plan_arn, facts.TRAINING_PLAN_ARN_PATTERN, allowed)
    if group.image_id is not None:
        allowed = "an id like ami-0123456789abcdef0, or default"
        yield from matches("image_id", group.image_id, facts.IMAGE_ID_PATTERN, allowed)
    if group.security_group_ids and not group.subnet_ids:
        hint = "Without subnets of its own the group is in the cluster's network."
        yield Problem("security_group_ids", one_of(group.security_group_ids), "none without subnet_ids", hint)
    yield from _ids("subnet_ids", group.subnet_ids, facts.SUBNET_ID_PATTERN, most=facts.MAX_SUBNETS)
    groups = group.security_group_ids
    yield from _ids("security_group_ids", groups, facts.SECURITY_GROUP_ID_PATTERN, most=facts.MAX_SECURITY_GROUPS)


def _ids(argument: str, ids: Sequence[str], pattern: re.Pattern[str], *, most: int) -> Iterator[Problem]:
    if len(ids) > most:
        yield Problem(argument, f"{len(ids)} ids", f"at most {most}")
    for index, given in enumerate(ids):
        kind = pattern.pattern.partition("-")[0]
        yield from matches(f"{argument}[{index}]", given, pattern, f"an id like {kind}-0123456789abcdef0")


def _updates(group: InstanceGroup) -> Iterator[Problem]:
    update = group.scheduled_update
    if update is None:
        return
    if group.auto_patch is not None:
        hint = "Both would decide when a node gets a new image."
        yield Problem("auto_patch", group.auto_patch, "none beside scheduled_update", hint)
    for problem in _scheduled_update(update):
        yield Problem(f"scheduled_update.{problem.argument}", problem.given, problem.allowed, problem.hint)


def _scheduled_update(update: ScheduledUpdate) -> Iterator[Problem]:
    allowed = "six fields like cron(0 3 ? * SUN *)"
    yield from matches("schedule", update.schedule, facts.UPDATE_SCHEDULE_PATTERN, allowed)
    if update.max_percent is not None and not 1 <= update.max_percent <= 100:  # noqa: PLR2004 -- percent
        yield Problem("max_percent", update.max_percent, "1 to 100")
    if not 0 <= update.wait_s <= facts.MAX_UPDATE_WAIT_S:
        yield Problem("wait_s", update.wait_s, f"0 to {facts.MAX_UPDATE_WAIT_S}")
    if len(update.rollback_alarms) > facts.MAX_ROLLBACK_ALARMS:
        allowed = f"at most {facts.MAX_ROLLBACK_ALARMS}"
        yield Problem("rollback_alarms", f"{len(update.rollback_alarms)} alarms", allowed)
