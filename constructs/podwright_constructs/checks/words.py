"""What the checks have in common: patterns, names, references, and how choices are told."""

from __future__ import annotations

import re
from collections.abc import Sequence

from podwright_constructs import facts
from podwright_constructs.problems import Problem

FILE_SYSTEM_ON_DESTROY = ("backup", "destroy")


def name_problems(argument: str, name: str, max_length: int) -> list[Problem]:
    """Problems of a name in the form SageMaker gives clusters, groups and partitions."""
    allowed = f"1 to {max_length} letters, digits and hyphens, no hyphen first or last"
    if len(name) > max_length and not is_reference(name):
        return [Problem(argument, name, allowed, f"It has {len(name)} characters.")]
    return matches(argument, name, facts.CLUSTER_NAME_PATTERN, allowed)


def mount_path_problems(mount_path: str) -> list[Problem]:
    """Problems of the place where nodes mount a file system."""
    return matches("mount_path", mount_path, facts.MOUNT_PATH_PATTERN, "an absolute path like /fsx")


def backup_problems(retention_days: int, on_destroy: str) -> list[Problem]:
    """Problems of a file system's backups: how long automatic ones stay, whether there is a last one."""
    problems = []
    if not 0 <= retention_days <= facts.MAX_BACKUP_RETENTION_DAYS:
        allowed = f"0 (none) to {facts.MAX_BACKUP_RETENTION_DAYS}"
        problems.append(Problem("automatic_backup_retention_days", retention_days, allowed))
    if on_destroy not in FILE_SYSTEM_ON_DESTROY:
        problems.append(Problem("on_destroy", on_destroy, one_of(FILE_SYSTEM_ON_DESTROY)))
    return problems


def matches(argument: str, value: str, pattern: re.Pattern[str], allowed: str, hint: str = "") -> list[Problem]:
    """One problem if a value does not have its form; a Terraform reference passes."""
    if is_reference(value) or pattern.fullmatch(value):
        return []
    return [Problem(argument, value, allowed, hint)]


def is_reference(value: str) -> bool:
    """Whether Terraform alone will know the value."""
    return "${" in value or "TfToken[" in value


def one_of(choices: Sequence[object]) -> str:
    """Choices as a sentence tells them: ``a, b or c``."""
    *others, last = map(str, choices)
    return f"{', '.join(others)} or {last}" if others else last
