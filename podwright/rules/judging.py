"""What rules are made of: findings out of a construct's problems, at the places of its arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

from pydantic.fields import FieldInfo

from podwright.findings import Finding, KeyPath, Level
from podwright.section import Section, UnknownValueError
from podwright.settings import InstanceGroup, Settings
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError
from podwright_constructs.instance_group import InstanceGroup as GroupArguments
from podwright_constructs.instance_group import ScheduledUpdate
from podwright_constructs.problems import Problem

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


def arguments(section: Section, *without: str) -> dict[str, Any]:
    """A section's values as the keyword arguments of its construct, which have the same names."""
    fields = type(section).model_fields
    return {name: _argument(section, name, fields[name]) for name in fields if name not in {"source", *without}}


def _argument(section: Section, name: str, field: FieldInfo) -> Any:
    """A value; for an unknown text or number one that passes every check, so that the other arguments are judged."""
    try:
        return getattr(section, name)
    except UnknownValueError:
        if field.annotation is str:
            return "${unknown}"  # a Terraform reference
        if field.annotation is int:
            return 1 if field.is_required() else field.default
        if field.default is None:  # as if it were not given
            return None
        raise


def group_arguments(group: InstanceGroup) -> GroupArguments:
    """A group of the file as the construct takes it."""
    update = group.scheduled_update
    return GroupArguments(
        **{**arguments(group), "scheduled_update": ScheduledUpdate(**arguments(update)) if update else None}
    )


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


def findings_of(section: KeyPath, problems: Iterable[Problem]) -> Iterator[Finding]:
    """A construct's problems at the places of its arguments: ``subnet_ids[1]`` is (…, "subnet_ids", 1)."""
    for problem in problems:
        keys = re.findall(r"\w+", problem.argument)
        yield finding_of((*section, *(int(key) if key.isdigit() else key for key in keys)), problem)


def finding_of(path: KeyPath, problem: Problem) -> Finding:
    """A construct's problem at one place of the file."""
    counted = problem.argument.endswith("s") and not isinstance(problem.given, int)
    verb = "have" if counted else "be"  # tags cannot have 51 tags
    message = f"{problem.argument} cannot {verb} {problem.given}"
    return error(path, message, f"allowed: {problem.allowed}. {problem.hint}".rstrip(". "))


def error(path: KeyPath, message: str, hint: str) -> Finding:
    """A finding that stops; its code is the rule's."""
    return Finding(Level.ERROR, "", path, message, hint)


def warning(path: KeyPath, message: str, hint: str) -> Finding:
    """A finding that only ``--strict`` takes for a failure."""
    return Finding(Level.WARNING, "", path, message, hint)
