"""Check the arguments of a cluster, its tags and its instance groups against SageMaker's limits."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from podwright_constructs import facts
from podwright_constructs.arguments.instance_group import InstanceGroup
from podwright_constructs.checks.instance_group import instance_group
from podwright_constructs.checks.words import (
    choice,
    counted,
    duplicate_problems,
    name_problems,
    one_of,
    resource_id_problems,
)
from podwright_constructs.problems import Code, Problem

NODE_RECOVERIES = ("automatic", "none")
NODE_PROVISIONINGS = ("continuous",)
SLURM_STRATEGIES = ("managed", "overwrite", "merge")
CONTINUOUS = "continuous provisioning"


def cluster(
    *,
    cluster_name: str,
    instance_groups: Sequence[InstanceGroup],
    node_recovery: str,
    tags: Mapping[str, str],
    node_provisioning: str | None = None,
    multi_head: bool = False,
    extra_security_group_ids: Sequence[str] = (),
) -> list[Problem]:
    """Check a cluster and all its instance groups."""
    return [
        *extra_security_groups(extra_security_group_ids),
        *cluster_name_problems("cluster_name", cluster_name),
        *choice("node_recovery", node_recovery, NODE_RECOVERIES),
        *cluster_provisioning(instance_groups, node_provisioning),
        *cluster_tags(tags),
        *cluster_instance_groups(instance_groups, multi_head=multi_head),
    ]


def extra_security_groups(ids: Sequence[str], argument: str = "extra_security_group_ids") -> list[Problem]:
    """Check the security groups that nodes have beside the network's."""
    problems = list(duplicate_problems(argument, ids))
    if len(ids) >= facts.MAX_SECURITY_GROUPS:
        need = f"at most {facts.MAX_SECURITY_GROUPS - 1} beside the network's"
        problems.append(Problem("size", (argument,), f"{len(ids)} ids", need))
    for index, group_id in enumerate(ids):
        problems += resource_id_problems((argument, index), group_id, "sg")
    return problems


def cluster_name_problems(argument: str, name: str) -> list[Problem]:
    """Check the name of a cluster, given as this argument."""
    return name_problems(argument, name, facts.MAX_CLUSTER_NAME_LENGTH)


def cluster_provisioning(groups: Sequence[InstanceGroup], node_provisioning: str | None) -> list[Problem]:
    """Check how nodes are provisioned, and arguments that depend on it."""
    problems = choice("node_provisioning", node_provisioning, NODE_PROVISIONINGS)
    if node_provisioning is not None and controllers(groups) > 1:
        need, hint = "no value with several controllers", "Continuous provisioning supports one controller."
        problems.append(Problem("conflict", ("node_provisioning",), node_provisioning, need, hint))
    return [
        *problems,
        *_volume_keys(groups, node_provisioning),
        *_spot(groups, node_provisioning),
        *_min_counts(groups, node_provisioning),
    ]


def cluster_instance_groups(groups: Sequence[InstanceGroup], *, multi_head: bool = False) -> list[Problem]:
    """Check each group, then the number of groups of each role and their names."""
    problems = [
        problem.below("instance_groups", index)
        for index, group in enumerate(groups)
        for problem in [*instance_group(group), *_heads(group, multi_head=multi_head)]
    ]
    return [*problems, *instance_group_composition(groups)]


def controllers(groups: Sequence[InstanceGroup]) -> int:
    """Return the number of controllers."""
    return sum(group.count for group in groups if group.role == "controller")


def api_slurm(
    *,
    strategy: str | None,
    node_provisioning: str | None,
    with_accounting: bool,
    instance_groups: Sequence[InstanceGroup],
) -> list[Problem]:
    """Check Slurm that HyperPod itself sets up, on a cluster provisioned this way.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config.html
    """
    continuous = node_provisioning is not None
    problems = []
    if strategy is not None and strategy not in SLURM_STRATEGIES:
        problems += choice("strategy", strategy, SLURM_STRATEGIES)
    elif strategy is not None and continuous:
        problems.append(Problem("conflict", ("strategy",), strategy, f"no value with {CONTINUOUS}"))
    elif strategy is None and not continuous:
        hint = "It decides what happens to a slurm.conf that was edited on the controller."
        problems.append(Problem("missing", ("strategy",), "no value", one_of(SLURM_STRATEGIES), hint))
    if with_accounting and not continuous:
        hint = "Without it HyperPod keeps the accounting database on the controller."
        problems.append(Problem("conflict", ("accounting",), "a database", CONTINUOUS, hint))
    if (count := controllers(instance_groups)) > 1:
        hint = "Only lifecycle scripts set up several controllers."
        problems.append(Problem("conflict", ("instance_groups",), f"{count} controllers", "1 controller", hint))
    if (count := sum(group.role == "login" for group in instance_groups)) > 1:
        hint = "Only lifecycle scripts set up several groups of login nodes."
        problems.append(Problem("conflict", ("instance_groups",), f"{count} login groups", "at most 1", hint))
    return [*problems, *_partitions(instance_groups)]


def types_with_bundle(groups: Sequence[InstanceGroup]) -> Iterator[Problem]:
    """Check groups whose nodes run podwright's lifecycle scripts, which compare a node with its group's one type."""
    for index, group in enumerate(groups):
        if group.other_instance_types:
            value = ", ".join(group.other_instance_types)
            hint = "They check the hardware of one type in each group. Add a group for each type."
            path = ("instance_groups", index, "other_instance_types")
            yield Problem("conflict", path, value, "no value with podwright's lifecycle scripts", hint)


def _partitions(groups: Sequence[InstanceGroup]) -> Iterator[Problem]:
    """https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterSlurmConfig.html."""
    for index, group in enumerate(groups):
        name = group.partition
        if name and facts.PARTITION_PATTERN.fullmatch(name) and not facts.CLUSTER_NAME_PATTERN.fullmatch(name):
            need = "letters, digits and hyphens"
            hint = "Only lifecycle scripts make partitions of other names."
            yield Problem("malformed", ("instance_groups", index, "partition"), name, need, hint)


def _volume_keys(groups: Sequence[InstanceGroup], node_provisioning: str | None) -> Iterator[Problem]:
    """https://docs.aws.amazon.com/sagemaker/latest/dg/smcluster-cmk.html."""
    for index, group in enumerate(groups):
        if group.key_arn is not None and node_provisioning is None:
            hint = "HyperPod encrypts volumes with your key only on continuously provisioned clusters."
            yield Problem("conflict", ("instance_groups", index, "key_arn"), "a key", CONTINUOUS, hint)


def _spot(groups: Sequence[InstanceGroup], node_provisioning: str | None) -> Iterator[Problem]:
    """https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-spot.html."""
    for index, group in enumerate(groups):
        if group.capacity == "spot" and node_provisioning is None:
            hint = "HyperPod starts spot nodes only on continuously provisioned clusters."
            yield Problem("conflict", ("instance_groups", index, "capacity"), group.capacity, CONTINUOUS, hint)


def _min_counts(groups: Sequence[InstanceGroup], node_provisioning: str | None) -> Iterator[Problem]:
    """https://aws.amazon.com/about-aws/whats-new/2026/05/amazon-sagemaker-hyperpod-mincount."""
    for index, group in enumerate(groups):
        if group.min_count is not None and node_provisioning is None:
            hint = "Without it, SageMaker starts all nodes of a group or none."
            yield Problem("conflict", ("instance_groups", index, "min_count"), group.min_count, CONTINUOUS, hint)


def _heads(group: InstanceGroup, *, multi_head: bool) -> Iterator[Problem]:
    if group.role == "controller" and group.count > 1 and not multi_head:
        hint = "Several controllers need an accounting database and a shared directory."
        yield Problem("range", ("count",), group.count, "1 for a controller group", hint)


def cluster_tags(tags: Mapping[str, str]) -> list[Problem]:
    """Check the number of tags, their keys and their values."""
    problems = []
    if len(tags) > facts.MAX_CLUSTER_TAGS:
        problems.append(Problem("size", ("tags",), f"{len(tags)} tags", f"at most {facts.MAX_CLUSTER_TAGS}"))
    spelt: dict[str, str] = {}
    for key, value in tags.items():
        if (spelling := spelt.setdefault(key.lower(), key)) != key:
            hint = "IAM ignores upper and lower case in the keys of a role's tags."
            problems.append(Problem("duplicate", ("tags", key), key, f"a key other than {spelling}", hint))
        if key.lower().startswith("aws:"):
            problems.append(Problem("malformed", ("tags", key), key, "a key that does not begin with aws:"))
        elif not 1 <= len(key) <= facts.MAX_TAG_KEY_LENGTH or not _is_tag_text(key):
            need = f"a key of 1 to {facts.MAX_TAG_KEY_LENGTH} {_TAG_TEXT}"
            problems.append(Problem("malformed", ("tags", key), key, need))
        if len(value) > facts.MAX_TAG_VALUE_LENGTH or not _is_tag_text(value):
            need = f"at most {facts.MAX_TAG_VALUE_LENGTH} {_TAG_TEXT}"
            problems.append(Problem("malformed", ("tags", key), value, need))
    return problems


_TAG_TEXT = f"letters, digits, spaces and {facts.TAG_PUNCTUATION}"


def _is_tag_text(text: str) -> bool:
    """Return whether every character is a letter, a number, a separator (Unicode's terms) or allowed punctuation."""
    return all(char in facts.TAG_PUNCTUATION or unicodedata.category(char)[0] in "LNZ" for char in text)


def instance_group_composition(groups: Sequence[InstanceGroup]) -> list[Problem]:
    """Check the number of groups, of groups of each role, and that no two have the same name."""
    problems = []
    if not 1 <= len(groups) <= facts.MAX_INSTANCE_GROUPS:
        problems.append(_groups("size", counted(len(groups), "group"), f"1 to {facts.MAX_INSTANCE_GROUPS}"))
    names = [group.name.lower() for group in groups]
    for name, times in Counter(names).items():
        if times > 1:
            second = names.index(name, names.index(name) + 1)
            duplicate, original = groups[second].name, groups[names.index(name)].name
            same = f"{times} groups have the name {duplicate}."
            hint = same if duplicate == original else f"{original} and {duplicate} differ only in upper and lower case."
            path = ("instance_groups", second, "name")
            problems.append(Problem("duplicate", path, duplicate, "a unique name for each group", hint))
    roles = Counter(group.role for group in groups)
    if roles["controller"] != 1:
        problems.append(_groups("size", counted(roles["controller"], "controller group"), "exactly 1"))
    if not roles["compute"]:
        hint = "Jobs run only on compute groups."
        problems.append(_groups("size", "no compute group", "at least 1", hint))
    return problems


def _groups(code: Code, value: str, need: str, hint: str = "") -> Problem:
    return Problem(code, ("instance_groups",), value, need, hint)
