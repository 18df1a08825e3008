"""Backups that move file systems to another zone or region.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/copy-backups.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from podwright.aws_session import Session
from podwright.errors import AwsError, OperationError
from podwright.operations.moving.journal import Journal
from podwright.settings import names

FIRST_POLL_S, LAST_POLL_S = 1.0, 15.0
MOVE_TAG = f"{names.TAG_PREFIX}move"  # Its value is the journal's id, which names the move that made a backup.
Section = Literal["lustre", "openzfs"]
# Section of the settings file by FSx's type.
SECTIONS: dict[str, Section] = {"LUSTRE": "lustre", "OPENZFS": "openzfs"}
NO_SUCH = {"BackupNotFound"}

Say = Callable[[str], None]


@dataclass(frozen=True)
class MovedFileSystem:
    """A file system of the old cluster's foundation."""

    id: str
    section: Section  # Its section of the settings file.
    description: Mapping[str, Any]

    @property
    def capacity_gib(self) -> int:
        """Its storage capacity."""
        return int(self.description.get("StorageCapacity", 0))

    def problem(self, *, linked: bool) -> str:
        """Return the reason why FSx does not back up this file system; empty if it does."""
        lustre = self.description.get("LustreConfiguration")
        if lustre is None:
            return ""
        if not lustre["DeploymentType"].startswith("PERSISTENT"):
            return f"{lustre['DeploymentType']} has no backups"
        if self.description.get("StorageType") == "INTELLIGENT_TIERING":
            return "INTELLIGENT_TIERING has no backups"
        return "it is linked with S3 (data_repositories), and FSx does not back up such file systems" if linked else ""


def file_systems(session: Session, cluster: str) -> list[MovedFileSystem]:
    """Return the file systems that a cluster's foundation made.

    Raises:
        AwsError: AWS refuses or does not answer.
    """
    cluster_tag = {"Key": names.CLUSTER_TAG, "Value": cluster}
    return [
        MovedFileSystem(item["FileSystemId"], SECTIONS[item["FileSystemType"]], item)
        for item in session.items("fsx", "describe_file_systems", "FileSystems")
        if cluster_tag in item.get("Tags", ())
        and item["FileSystemType"] in SECTIONS
        and item["Lifecycle"] != "DELETING"
    ]


@dataclass(frozen=True)
class Carrier:
    """Makes the backups of one move, and their copies in the new region.

    Args:
        journal: the move's journal; its id makes a repeated request the same request.
        old: the old region.
        new: the new region, which may be the old one.
        say: prints one line.
    """

    journal: Journal
    old: Session
    new: Session
    say: Say

    def carry(self, pass_: str) -> dict[str, str]:
        """Back up every file system and return the backups in the new region by section.

        Args:
            pass_: ``first`` or ``last``; FSx stores only changes since the previous backup, so the last one is short.

        Raises:
            OperationError: a backup failed, or AWS refuses.
        """
        moved = file_systems(self.old, self.journal.old.name)
        backup_ids: dict[str, str] = {item.section: self._backup(item, pass_) for item in moved}
        for section, backup_id in backup_ids.items():
            self._wait(self.old, backup_id, f"{pass_} backup of {section}")
        if self.new.region == self.old.region:
            return backup_ids
        copies = {section: self._copy(backup_id, section, pass_) for section, backup_id in backup_ids.items()}
        for section, backup_id in copies.items():
            self._wait(self.new, backup_id, f"copy of {section}'s {pass_} backup to {self.new.region}")
        return copies

    def existing(self) -> Iterator[tuple[Session, str]]:
        """Yield the backups that this move made, copies first."""
        sessions = [self.new] if self.new.region == self.old.region else [self.new, self.old]
        for session in sessions:
            for item in session.items("fsx", "describe_backups", "Backups"):
                if {"Key": MOVE_TAG, "Value": self.journal.id} in item.get("Tags", ()):
                    yield session, item["BackupId"]

    def delete(self) -> int:
        """Delete the backups that this move made and return their number.

        Raises:
            AwsError: AWS refuses or does not answer.
        """
        created_backups = list(self.existing())
        for session, backup_id in created_backups:
            try:
                session.call("fsx", "delete_backup", BackupId=backup_id)
            except AwsError as error:
                if error.code not in NO_SUCH:
                    raise
        return len(created_backups)

    def _tags(self, cluster: str, section: str, pass_: str) -> list[dict[str, str]]:
        tags = {names.CLUSTER_TAG: cluster, MOVE_TAG: self.journal.id, "Name": f"{cluster} {section} {pass_}"}
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _token(self, section: str, pass_: str, action: str) -> str:
        attempt = self.journal.facts.get("failed_backups", 0)  # FSx answers a repeated token with the first backup.
        return f"podwright-{self.journal.id}-{section}-{pass_}-{action}-{attempt}"

    def _backup(self, item: MovedFileSystem, pass_: str) -> str:
        answer = self.old.call(
            "fsx",
            "create_backup",
            FileSystemId=item.id,
            ClientRequestToken=self._token(item.section, pass_, "backup"),
            Tags=self._tags(self.journal.old.name, item.section, pass_),
        )
        return str(answer["Backup"]["BackupId"])

    def _copy(self, backup_id: str, section: str, pass_: str) -> str:
        answer = self.new.call(
            "fsx",
            "copy_backup",
            SourceBackupId=backup_id,
            SourceRegion=self.old.region,
            ClientRequestToken=self._token(section, pass_, "copy"),
            Tags=self._tags(self.journal.old.name, section, pass_),
        )
        return str(answer["Backup"]["BackupId"])

    def _wait(self, session: Session, backup_id: str, description: str) -> None:
        last_progress, pause_s = None, FIRST_POLL_S
        while True:
            (item,) = session.call("fsx", "describe_backups", BackupIds=[backup_id])["Backups"]
            state = item["Lifecycle"]
            if state == "AVAILABLE":
                self.say(f"{description}: {backup_id}")
                return
            if state in {"FAILED", "DELETED"}:
                self.journal.note(failed_backups=self.journal.facts.get("failed_backups", 0) + 1)
                reason = item.get("FailureDetails", {}).get("Message", state)
                raise OperationError(
                    f"{description} ({backup_id}): {reason}", "run `podwright move` again: it makes another backup"
                )
            progress = f"{description}: {state}, {item.get('ProgressPercent', 0)} %"
            if progress != last_progress:
                self.say(progress)
                last_progress = progress
            time.sleep(pause_s)
            pause_s = min(LAST_POLL_S, 1.5 * pause_s)
