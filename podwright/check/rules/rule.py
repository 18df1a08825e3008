"""Define a rule, a function from settings to findings, and what keeps it from wrong values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from podwright.check.findings import Finding, KeyPath, findings_of
from podwright.settings.arguments import arguments
from podwright.settings.cluster import ExistingScripts, InstanceGroupSection
from podwright.settings.root import Settings
from podwright.settings.section import Section
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError
from podwright_constructs.problems import Problem

Rule = Callable[[Settings], Iterator[Finding]]
P = ParamSpec("P")
S = TypeVar("S", bound=Section)
T = TypeVar("T")
CheckedPart = Callable[Concatenate[Settings, P], Iterator[Finding]]


GROUPS: KeyPath = ("cluster", "instance_groups")

# Keys that rules read together.
NETWORK_BLOCKS = (
    "network.cidr",
    "network.secondary_cidrs",
    "network.public_subnet_cidr",
    "network.private_subnet_cidr",
    "network.extra_private_subnets.cidr",
    "network.internet",
)
OWN_BUCKET = ("name", "bucket.source", "bucket.name")
OWN_SCRIPTS = ("cluster.slurm.source", "cluster.slurm.init_script", "training.source", "notices.idle_hours")


def reads(*keys: str) -> Callable[[CheckedPart[P]], CheckedPart[P]]:
    """Name the keys that a rule, or a part of one, needs: it has no findings if the file's value of one is wrong.

    Findings at a wrong key are dropped anyway, so a rule names the keys that decide on findings at other keys.

    Args:
        keys: such as ``cluster.instance_groups.count``, which stands for every group's; a section stands for all its
            keys, and ``network.source`` for the choice of the section alone.
    """
    return _only_if(lambda settings: settings.are_valid(*keys))


def reads_compute_groups(*keys: str) -> Callable[[CheckedPart[P]], CheckedPart[P]]:
    """Name the keys of compute groups that a rule, or a part of one, needs; those of other groups do not matter."""

    def are_valid(settings: Settings) -> bool:
        groups = enumerate(settings.cluster.instance_groups)
        indices = [index for index, group in groups if group.role == "compute"]
        wrong = any(settings.is_wrong((*GROUPS, index, key)) for index in indices for key in keys)
        return settings.are_valid("cluster.instance_groups.role") and not wrong

    return _only_if(are_valid)


def _only_if(condition: Callable[[Settings], bool]) -> Callable[[CheckedPart[P]], CheckedPart[P]]:
    def decorate(check: CheckedPart[P]) -> CheckedPart[P]:
        @wraps(check)
        def checked(settings: Settings, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Finding]:
            if condition(settings):
                yield from check(settings, *args, **kwargs)

        return checked

    return decorate


def valid_items(settings: Settings, path: KeyPath, items: Sequence[T], *keys: str) -> Iterator[tuple[KeyPath, T]]:
    """Yield the items of a list, each with its path, in which the file's values of these keys are valid."""
    for index, item in enumerate(items):
        if not any(settings.is_wrong((*path, index, key)) for key in keys):
            yield (*path, index), item


def for_each_group(*keys: str) -> Callable[[Callable[[InstanceGroupSection, KeyPath], Iterator[Finding]]], Rule]:
    """Make a rule of a check of one instance group, which needs the group's values of these keys."""

    def decorate(check: Callable[[InstanceGroupSection, KeyPath], Iterator[Finding]]) -> Rule:
        @wraps(check)
        def rule(settings: Settings) -> Iterator[Finding]:
            for path, group in valid_items(settings, GROUPS, settings.cluster.instance_groups, *keys):
                yield from check(group, path)

        return rule

    return decorate


def problems_of(
    settings: Settings, path: KeyPath, section: S, check: Callable[[S], Iterable[Problem]]
) -> list[Problem]:
    """Return a section's problems; of a section with wrong keys, those that it has whatever their values should be."""
    problems = list(check(section))
    for wrong_path, values in settings.wrong_keys.items():
        if wrong_path[: len(path)] == path:
            for value in values:
                remaining = list(check(_replaced(section, wrong_path[len(path) :], value)))
                problems = [problem for problem in problems if problem in remaining]
    return problems


def findings_of_section(
    settings: Settings, path: KeyPath, section: S, check: Callable[[S], Iterable[Problem]]
) -> Iterator[Finding]:
    """Report the problems that a construct's check finds in a section, at the path of the section."""
    yield from findings_of(path, problems_of(settings, path, section, check))


def findings_of_arguments(
    settings: Settings,
    path: KeyPath,
    section: Section,
    check: Callable[..., Iterable[Problem]],
    *without: str,
    **constants: object,
) -> Iterator[Finding]:
    """Report the problems that a check of keyword arguments finds in a section, whose keys have their names.

    Args:
        settings: The settings of the section.
        path: The section's path.
        section: The section; its values are the arguments.
        check: A construct's check.
        without: Keys that are no arguments of the check.
        constants: Further arguments.
    """

    def check_section(section: Section) -> Iterable[Problem]:
        return check(**constants, **arguments(section, *without))

    yield from findings_of_section(settings, path, section, check_section)


def _replaced(parent: Any, path: KeyPath, value: object) -> Any:
    """Return a section, a mapping or a list with another value at a path."""
    if not path:
        return value
    key, below = path[0], path[1:]
    if isinstance(parent, Section):
        return parent.model_copy(update={str(key): _replaced(getattr(parent, str(key)), below, value)})
    if isinstance(parent, Mapping):
        return {**parent, key: _replaced(parent[key], below, value)}
    return tuple(_replaced(item, below, value) if index == key else item for index, item in enumerate(parent))


def scripts_in_place_of_ours(settings: Settings) -> tuple[str, str]:
    """Return the scripts that nodes run in place of podwright's, and how to make them run podwright's."""
    if isinstance(settings.cluster.slurm, ExistingScripts):
        return "`slurm: {source: existing}`", "use `slurm: {source: lifecycle}`"
    return "`init_script`", "delete `init_script`"


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
