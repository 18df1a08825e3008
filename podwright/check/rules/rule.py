"""Define a rule, a function from settings to findings, and the loops that several rules share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps

from podwright.check.findings import Finding, KeyPath
from podwright.settings.cluster import ExistingScripts, InstanceGroupSection
from podwright.settings.root import Settings
from podwright.settings.section import UnknownValueError
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError

Rule = Callable[[Settings], Iterator[Finding]]


GROUPS: KeyPath = ("cluster", "instance_groups")


def scripts_in_place_of_ours(settings: Settings) -> tuple[str, str]:
    """Return the scripts that nodes run in place of podwright's, and how to make them run podwright's."""
    if isinstance(settings.cluster.slurm, ExistingScripts):
        return "`slurm: {source: existing}`", "use `slurm: {source: lifecycle}`"
    return "`init_script`", "delete `init_script`"


def until_unknown_value(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings until one would need a value that the file gives wrongly."""
    with suppress(UnknownValueError):
        yield from findings


def for_each_group(check: Callable[[InstanceGroupSection, KeyPath], Iterator[Finding]]) -> Rule:
    """Make a rule of a check of one instance group; a wrong value in one group does not hide findings in others."""

    @wraps(check)
    def rule(settings: Settings) -> Iterator[Finding]:
        for index, group in enumerate(settings.cluster.instance_groups):
            yield from until_unknown_value(check(group, (*GROUPS, index)))

    return rule


def nodes_by_type(groups: Iterable[InstanceGroupSection]) -> Counter[str]:
    """Count nodes by instance type."""
    nodes: Counter[str] = Counter()
    for group in groups:
        nodes[group.instance_type] += group.count
    return nodes


def compute_types(settings: Settings) -> Iterator[tuple[int, InstanceType]]:
    """Yield each compute group's node count and instance type; skip types that another rule refuses."""
    for group in settings.cluster.instance_groups:
        if group.role == "compute":
            with suppress(UnknownInstanceTypeError):
                yield group.count, InstanceType.of(group.instance_type)
