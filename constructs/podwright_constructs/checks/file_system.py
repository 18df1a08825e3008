"""Check the arguments that FSx file systems of every type have."""

from __future__ import annotations

from typing import get_args

from podwright_constructs import facts
from podwright_constructs.arguments.file_system import FileSystemArguments, OnDestroy
from podwright_constructs.checks.words import choice, matches, resource_id_problems, within
from podwright_constructs.problems import Problem


def file_system_problems(file_system: FileSystemArguments) -> list[Problem]:
    """Check maintenance, how long automatic backups stay, whether a last one is made, and the backup it begins with."""
    maximum, days = facts.MAX_BACKUP_RETENTION_DAYS, file_system.automatic_backup_retention_days
    return [
        *within("automatic_backup_retention_days", days, 0, maximum, f"0 (no backups) to {maximum}"),
        *matches(
            "weekly_maintenance_start_time",
            file_system.weekly_maintenance_start_time,
            facts.WEEKLY_MAINTENANCE_PATTERN,
            "D:HH:MM like 7:03:30",
            "1 is Monday and 7 is Sunday; the time is UTC.",
        ),
        *choice("on_destroy", file_system.on_destroy, get_args(OnDestroy)),
        *matches("backup_id", file_system.backup_id, facts.BACKUP_ID_PATTERN, "an id like backup-0123456789abcdef0"),
    ]


def file_system_id(file_system_id: str) -> list[Problem]:
    """Check the id of an existing file system."""
    return resource_id_problems(("file_system_id",), file_system_id, "fs")
