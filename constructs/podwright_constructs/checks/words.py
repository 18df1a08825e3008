"""Shared parts of the checks: patterns, names, Terraform references, and lists of choices as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from podwright_constructs import facts
from podwright_constructs.problems import Path, Problem

FILE_SYSTEM_ON_DESTROY = ("backup", "destroy")


def name_problems(argument: str, name: str, max_length: int) -> list[Problem]:
    """Check a name of the form that SageMaker gives clusters, groups and partitions."""
    need = f"1 to {max_length} letters, digits and hyphens, no hyphen first or last"
    if len(name) > max_length and not is_reference(name):
        return [Problem("malformed", (argument,), name, need, f"It has {len(name)} characters.")]
    return matches(argument, name, facts.CLUSTER_NAME_PATTERN, need)


def mount_path_problems(mount_path: str) -> list[Problem]:
    """Check the path where nodes mount a file system."""
    return matches("mount_path", mount_path, facts.MOUNT_PATH_PATTERN, "an absolute path like /fsx")


def key_arn_problems(key_arn: str | None) -> list[Problem]:
    """Check the ARN of a KMS key, if one is given."""
    if key_arn is None:
        return []
    return matches("key_arn", key_arn, facts.KEY_ARN_PATTERN, "an ARN like arn:aws:kms:us-west-2:123456789012:key/…")


def backup_problems(retention_days: int, on_destroy: str) -> list[Problem]:
    """Check how long a file system's automatic backups stay, and whether a last one is made."""
    most = facts.MAX_BACKUP_RETENTION_DAYS
    return [
        *within("automatic_backup_retention_days", retention_days, 0, most, f"0 (no backups) to {most}"),
        *choice("on_destroy", on_destroy, FILE_SYSTEM_ON_DESTROY),
    ]


def matches(path: str | Path, value: str, pattern: re.Pattern[str], need: str, hint: str = "") -> list[Problem]:
    """Return a problem if the value does not match the pattern; a Terraform reference always passes."""
    if is_reference(value) or pattern.fullmatch(value):
        return []
    return [Problem("malformed", _path(path), value, need, hint)]


def choice(path: str | Path, value: object, choices: Sequence[object], where: str = "") -> list[Problem]:
    """Return a problem if a value is given and is not one of the choices."""
    return (
        []
        if value is None or value in choices
        else [Problem("choice", _path(path), value, f"{one_of(choices)}{where}")]
    )


def within(path: str | Path, value: int | None, least: int, most: int, need: str = "") -> list[Problem]:
    """Return a problem if a number is given and is outside its inclusive range."""
    return (
        []
        if value is None or least <= value <= most
        else [Problem("range", _path(path), value, need or f"{least} to {most}")]
    )


def is_reference(value: str) -> bool:
    """Return whether only Terraform will know the value."""
    return "${" in value or "TfToken[" in value


def one_of(choices: Sequence[object]) -> str:
    """Return the choices as text: ``a, b or c``."""
    *others, last = map(str, choices)
    return f"{', '.join(others)} or {last}" if others else last


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 zone``, ``no zones``, ``2 zones``."""
    return f"1 {noun}" if count == 1 else f"{count or 'no'} {noun}s"


def _path(path: str | Path) -> Path:
    return (path,) if isinstance(path, str) else path
