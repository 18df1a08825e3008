"""Arguments that FSx file systems of every type have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from podwright_constructs import facts
from podwright_constructs.arguments import PassedAs

OnDestroy = Literal["retain", "backup", "destroy"]


@dataclass(frozen=True, kw_only=True)
class FileSystemArguments:
    """A new FSx file system of any type."""

    automatic_backup_retention_days: Annotated[
        int,
        Doc(
            f"Days that automatic daily backups are kept, 0 to {facts.MAX_BACKUP_RETENTION_DAYS}. "
            "Default: 0, no automatic backups."
        ),
    ] = 0
    weekly_maintenance_start_time: Annotated[
        str | None,
        Doc(
            "When FSx may patch the file system each week, in UTC: D:HH:MM, where D is 1 for Monday to 7 for Sunday. "
            "The file system may not answer for minutes. Default: FSx chooses."
        ),
        PassedAs("weekly_maintenance_start_time"),
    ] = None
    on_destroy: Annotated[
        OnDestroy,
        Doc(
            "retain makes Terraform refuse every plan that deletes the file system, also to replace it; backup makes a "
            "last backup before it is deleted; destroy deletes it with its files. Default: retain."
        ),
    ] = "retain"
    backup_id: Annotated[
        str | None,
        Doc(
            "Backup of this region, backup-…, to create the file system from; `podwright move` writes it. "
            "Another value makes a new file system. Default: empty."
        ),
        PassedAs("backup_id"),
    ] = None
