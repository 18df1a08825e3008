"""What SageMaker would refuse of a cluster: its own arguments, and its instance groups together."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from podwright_constructs import facts
from podwright_constructs.checks.instance_group import instance_group
from podwright_constructs.checks.words import name_problems, one_of
from podwright_constructs.instance_group import InstanceGroup
from podwright_constructs.problems import Problem

NODE_RECOVERIES = ("automatic", "none")
NODE_PROVISIONINGS = ("continuous",)
SLURM_STRATEGIES = ("managed", "overwrite", "merge")


def cluster(
    *,
    cluster_name: str,
    instance_groups: Sequence[InstanceGroup],
    node_recovery: str,
    tags: Mapping[str, str],
    node_provisioning: str | None = None,
    tiered_storage_percent: int | None = None,
    multi_head: bool = False,
) -> list[Problem]:
    """Problems of a cluster and of all its instance groups."""
    problems = name_problems("cluster_name", cluster_name, facts.MAX_CLUSTER_NAME_LENGTH)
    if node_recovery not in NODE_RECOVERIES:
        problems.append(Problem("node_recovery", node_recovery, one_of(NODE_RECOVERIES)))
    if node_provisioning is not None and node_provisioning not in NODE_PROVISIONINGS:
        problems.append(Problem("node_provisioning", node_provisioning, one_of(NODE_PROVISIONINGS)))
    most = facts.MAX_TIERED_STORAGE_PERCENT
    if tiered_storage_percent is not None and not 0 <= tiered_storage_percent <= most:
        problems.append(Problem("tiered_storage_percent", tiered_storage_percent, f"0 to {most}"))
    if node_provisioning is not None and controllers(instance_groups) > 1:
        hint = "Continuous provisioning knows one controller only."
        problems.append(Problem("node_provisioning", node_provisioning, "none with several controllers", hint))
    problems += _volume_keys(instance_groups, node_provisioning)
    return [*problems, *_tags(tags), *cluster_instance_groups(instance_groups, multi_head=multi_head)]


def cluster_instance_groups(groups: Sequence[InstanceGroup], *, multi_head: bool = False) -> list[Problem]:
    """Problems of each group, then of the groups together."""
    problems = [
        Problem(f"instance_groups[{index}].{problem.argument}", problem.given, problem.allowed, problem.hint)
        for index, group in enumerate(groups)
        for problem in [*instance_group(group), *_heads(group, multi_head=multi_head)]
    ]
    return problems + list(_composition(groups))


def controllers(groups: Sequence[InstanceGroup]) -> int:
    """How many controllers there would be."""
    return sum(group.count for group in groups if group.role == "controller")


def api_slurm(
    *,
    strategy: str | None,
    node_provisioning: str | None,
    with_accounting: bool,
    instance_groups: Sequence[InstanceGroup],
) -> list[Problem]:
    """Problems of Slurm that HyperPod sets up itself, on a cluster provisioned this way.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config.html
    """
    continuous = node_provisioning is not None
    problems = []
    if strategy is not None and strategy not in SLURM_STRATEGIES:
        problems.append(Problem("strategy", strategy, one_of(SLURM_STRATEGIES)))
    elif strategy is not None and continuous:
        problems.append(Problem("strategy", strategy, "none with continuous provisioning"))
    elif strategy is None and not continuous:
        hint = "It says who wins when slurm.conf was edited on the controller."
        problems.append(Problem("strategy", "nothing", one_of(SLURM_STRATEGIES), hint))
    if with_accounting and not continuous:
        hint = "Without it HyperPod keeps accounts on the controller."
        problems.append(Problem("accounting", "a database", "none without continuous provisioning", hint))
    if controllers(instance_groups) > 1:
        hint = "Several controllers are for lifecycle scripts alone."
        problems.append(Problem("instance_groups", f"{controllers(instance_groups)} controllers", "1 controller", hint))
    return problems


def _volume_keys(groups: Sequence[InstanceGroup], node_provisioning: str | None) -> Iterator[Problem]:
    """https://docs.aws.amazon.com/sagemaker/latest/dg/smcluster-cmk.html."""
    for index, group in enumerate(groups):
        if group.key_arn is not None and node_provisioning is None:
            hint = "HyperPod takes keys for volumes with continuous provisioning alone."
            yield Problem(f"instance_groups[{index}].key_arn", "given", "none without continuous provisioning", hint)


def _heads(group: InstanceGroup, *, multi_head: bool) -> Iterator[Problem]:
    if group.role == "controller" and group.count > 1 and not multi_head:
        hint = "More controllers need an accounting database and a directory that they share."
        yield Problem("count", group.count, "1 for a controller group", hint)


def _tags(tags: Mapping[str, str]) -> Iterator[Problem]:
    if len(tags) > facts.MAX_CLUSTER_TAGS:
        yield Problem("tags", f"{len(tags)} tags", f"at most {facts.MAX_CLUSTER_TAGS}")
    for key, value in tags.items():
        if key.startswith("aws:"):
            yield Problem("tags", key, "keys that do not begin with aws:")
        elif not 1 <= len(key) <= facts.MAX_TAG_KEY_LENGTH or not _is_tag_text(key):
            yield Problem("tags", key, f"keys of 1 to {facts.MAX_TAG_KEY_LENGTH} {_TAG_TEXT}")
        if len(value) > facts.MAX_TAG_VALUE_LENGTH or not _is_tag_text(value):
            yield Problem(f"tags.{key}", value, f"at most {facts.MAX_TAG_VALUE_LENGTH} {_TAG_TEXT}")


_TAG_TEXT = f"letters, digits, spaces and {facts.TAG_PUNCTUATION}"


def _is_tag_text(text: str) -> bool:
    """Whether every character is a letter, a number, a separator (Unicode's words) or one of the punctuation."""
    return all(char in facts.TAG_PUNCTUATION or unicodedata.category(char)[0] in "LNZ" for char in text)


def _composition(groups: Sequence[InstanceGroup]) -> Iterator[Problem]:
    if not 1 <= len(groups) <= facts.MAX_INSTANCE_GROUPS:
        yield Problem("instance_groups", f"{len(groups)} groups", f"1 to {facts.MAX_INSTANCE_GROUPS} groups")
    names = Counter(group.name for group in groups)
    for name, times in names.items():
        if times > 1:
            yield Problem("instance_groups", name, "each name once", f"{times} groups are called {name}.")
    roles = Counter(group.role for group in groups)
    if roles["controller"] != 1:
        yield Problem("instance_groups", f"{roles['controller']} controller groups", "exactly 1")
    if roles["login"] > 1:
        yield Problem("instance_groups", f"{roles['login']} login groups", "at most 1")
    if not roles["compute"]:
        yield Problem("instance_groups", "no compute group", "at least 1", "Jobs run on compute groups alone.")
