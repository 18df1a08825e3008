"""What a rule is: a function from settings to findings, and the loops that several rules share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps

from podwright.check.findings import Finding, KeyPath
from podwright.settings.cluster import InstanceGroup
from podwright.settings.root import Settings
from podwright.settings.section import UnknownValueError
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError

Rule = Callable[[Settings], Iterator[Finding]]


GROUPS: KeyPath = ("cluster", "instance_groups")


def judged(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings up to where one would need a value that the file gives wrongly."""
    with suppress(UnknownValueError):
        yield from findings


def each_group(judge: Callable[[InstanceGroup, KeyPath], Iterator[Finding]]) -> Rule:
    """A rule about single instance groups, each judged even when another has a wrong value."""

    @wraps(judge)
    def rule(settings: Settings) -> Iterator[Finding]:
        for index, group in enumerate(settings.cluster.instance_groups):
            yield from judged(judge(group, (*GROUPS, index)))

    return rule


def nodes_by_type(groups: Iterable[InstanceGroup]) -> Counter[str]:
    """How many nodes of each type some groups have."""
    nodes: Counter[str] = Counter()
    for group in groups:
        nodes[group.instance_type] += group.count
    return nodes


def judged_types(settings: Settings) -> Iterator[tuple[int, InstanceType]]:
    """How many nodes each compute group has, and their type; without groups whose type another rule refuses."""
    for group in settings.cluster.instance_groups:
        if group.role == "compute":
            with suppress(UnknownInstanceTypeError):
                yield group.count, InstanceType.of(group.instance_type)
