"""Backups of FSx file systems, and copies of them within a region and between regions.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateBackup.html
https://docs.aws.amazon.com/fsx/latest/APIReference/API_CopyBackup.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from podwright_rehearsal.aws import clock
from podwright_rehearsal.aws.account import Account, random_id
from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.contents import Contents

MOST_COPIES = 5  # in progress to one region


@dataclass
class Backup:
    """One backup; ``description`` is DescribeBackups' answer without state and tags."""

    description: dict[str, Any]
    state: str  # AWS's name of the state before it is available.
    available_at: float
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def lifecycle(self) -> str:
        """AWS's name of the current state."""
        return "AVAILABLE" if clock.now() >= self.available_at else self.state

    @property
    def file_system_id(self) -> str:
        """The file system that it was made of, which may no longer exist."""
        return str(self.description["FileSystem"]["FileSystemId"])

    def view(self) -> dict[str, Any]:
        """Return the description with the current state and tags."""
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return {**self.description, "Lifecycle": self.lifecycle, "Tags": tags}


class Backups:
    """The backups of one region. Not thread-safe: the server calls it under its lock.

    Args:
        account: whose they are, and in which region.
        contents: the files of file systems and backups.
        transition_s: how long making or copying one takes.
        elsewhere: gives the backups of another region.

    Raises:
        AwsError: ``elsewhere`` raises it for a region that there is not.
    """

    def __init__(
        self, *, account: Account, contents: Contents, transition_s: float, elsewhere: Callable[[str], Backups]
    ) -> None:
        self._account = account
        self._contents = contents
        self._transition_s = transition_s
        self._elsewhere = elsewhere
        self._by_id: dict[str, Backup] = {}
        self._by_token: dict[str, tuple[str, str]] = {}  # The request's source and the backup's id, by token.
        self.operations = {
            "DescribeBackups": self.describe,
            "DeleteBackup": self.delete,
            "CopyBackup": self.copy,
        }

    def create(
        self, request: Mapping[str, Any], file_system: Mapping[str, Any], tags: Mapping[str, str], *, linked: bool
    ) -> dict[str, Any]:
        """CreateBackup of a file system; ``linked`` says that it has data repositories."""
        existing = self._known(request, request["FileSystemId"])
        if existing:
            return {"Backup": existing.view()}
        check_backup(file_system, linked=linked)
        if file_system["Lifecycle"] != "AVAILABLE":
            raise AwsError("BadRequest", f"File system {request['FileSystemId']} is {file_system['Lifecycle']}")
        if any(
            item.lifecycle == "CREATING" and item.file_system_id == request["FileSystemId"]
            for item in self._by_id.values()
        ):
            raise AwsError("BackupInProgress", f"Another backup of {request['FileSystemId']} is in progress.")
        requested_tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or []}
        backup = self.add(file_system, requested_tags or tags)
        self._remember(request, request["FileSystemId"], backup)
        return {"Backup": backup.view()}

    def add(self, file_system: Mapping[str, Any], tags: Mapping[str, str], *, ready: bool = False) -> Backup:
        """Make a backup with the files that a file system has now."""
        backup = self._new(file_system, tags, state="CREATING", ready=ready)
        self._contents.make(backup.description["BackupId"], like=file_system["FileSystemId"])
        return backup

    def copy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CopyBackup from this region or another one."""
        source_id = request["SourceBackupId"]
        region = request.get("SourceRegion") or self._account.region
        existing = self._known(request, source_id)
        if existing:
            return {"Backup": existing.view()}
        source = (self if region == self._account.region else self._elsewhere(region)).find(source_id)
        if source.lifecycle != "AVAILABLE":
            message = f"The source backup {source_id} is {source.lifecycle}; it has to be AVAILABLE."
            raise AwsError("SourceBackupUnavailable", message)
        copies = [item for item in self._by_id.values() if item.lifecycle == "COPYING"]
        if len(copies) >= MOST_COPIES:
            raise AwsError("ServiceLimitExceeded", f"{MOST_COPIES} copies to {self._account.region} are in progress")
        tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or []}
        copied_tags = source.tags if request.get("CopyTags") else {}
        backup = self._new(source.description["FileSystem"], {**copied_tags, **tags}, state="COPYING")
        backup.description |= {"SourceBackupId": source_id, "SourceBackupRegion": region}
        if request.get("KmsKeyId"):
            backup.description["KmsKeyId"] = request["KmsKeyId"]
        self._contents.make(backup.description["BackupId"], like=source_id)
        self._remember(request, source_id, backup)
        return {"Backup": backup.view()}

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeBackups: those named, or all that the filters let pass."""
        named = request.get("BackupIds")
        backups = [self.find(backup_id) for backup_id in named] if named else list(self._by_id.values())
        for condition in request.get("Filters") or []:
            values = condition["Values"]
            if condition["Name"] == "file-system-id":
                backups = [item for item in backups if item.file_system_id in values]
            elif condition["Name"] == "backup-type":
                backups = [item for item in backups if item.description["Type"] in values]
            else:
                raise AwsError("BadRequest", f"The stand-in does not know the filter {condition['Name']}")
        return {"Backups": [item.view() for item in backups]}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DeleteBackup."""
        backup = self.find(request["BackupId"])
        if backup.lifecycle != "AVAILABLE":
            raise AwsError("BackupInProgress", f"Backup {request['BackupId']} is {backup.lifecycle}")
        del self._by_id[request["BackupId"]]
        self._contents.remove(request["BackupId"])
        return {"BackupId": request["BackupId"], "Lifecycle": "DELETED"}

    def find(self, backup_id: str) -> Backup:
        """Return a backup.

        Raises:
            AwsError: the region has no backup with this id.
        """
        if backup_id not in self._by_id:
            raise AwsError("BackupNotFound", f"Backup '{backup_id}' does not exist.")
        return self._by_id[backup_id]

    def all(self) -> Iterator[Backup]:
        """Yield every backup."""
        yield from self._by_id.values()

    def _new(
        self, file_system: Mapping[str, Any], tags: Mapping[str, str], *, state: str, ready: bool = False
    ) -> Backup:
        backup_id = random_id("backup")
        description = {
            "BackupId": backup_id,
            "Type": "USER_INITIATED",
            "CreationTime": clock.now(),
            "ResourceARN": self._account.arn("fsx", f"backup/{backup_id}"),
            "FileSystem": dict(file_system),
            "KmsKeyId": self._account.arn("kms", "alias/aws/fsx"),
            "OwnerId": file_system["OwnerId"],
            "ProgressPercent": 100,
        }
        description["FileSystem"].pop("Lifecycle", None)
        available_at = clock.now() + (0 if ready else self._transition_s)
        self._by_id[backup_id] = Backup(description, state, available_at, dict(tags))
        return self._by_id[backup_id]

    def _known(self, request: Mapping[str, Any], source_id: str) -> Backup | None:
        """Return the backup that a request with this token made before."""
        token = request.get("ClientRequestToken")
        if token not in self._by_token:
            return None
        before, backup_id = self._by_token[token]
        if before != source_id:
            raise AwsError("IncompatibleParameterError", f"The token {token} was used for {before}")
        return self._by_id.get(backup_id)

    def _remember(self, request: Mapping[str, Any], source_id: str, backup: Backup) -> None:
        token = request.get("ClientRequestToken", secrets.token_hex())
        self._by_token[token] = source_id, backup.description["BackupId"]


def check_backup(file_system: Mapping[str, Any], *, linked: bool) -> None:
    """Refuse file systems that FSx does not back up.

    Raises:
        AwsError: ``BadRequest``.
    """
    lustre = file_system.get("LustreConfiguration")
    if lustre is not None and not lustre["DeploymentType"].startswith("PERSISTENT"):
        raise AwsError("BadRequest", f"Backups are not supported on {lustre['DeploymentType']} file systems")
    if linked:
        raise AwsError("BadRequest", "Backups are not supported on file systems that are linked to S3")


def check_restore(request: Mapping[str, Any], backup: Backup) -> None:
    """Refuse a file system that differs from its backup in properties that a restore keeps.

    https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemFromBackup.html
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html

    Raises:
        AwsError: ``BadRequest`` or ``IncompatibleParameterError``.
    """
    if backup.lifecycle != "AVAILABLE":
        raise AwsError("BadRequest", f"Backup {backup.description['BackupId']} is {backup.lifecycle}")
    before = backup.description["FileSystem"]
    capacity = request.get("StorageCapacity", before["StorageCapacity"])
    grows = before["FileSystemType"] == "OPENZFS" and capacity > before["StorageCapacity"]
    if capacity != before["StorageCapacity"] and not grows:
        raise AwsError(
            "BadRequest", f"StorageCapacity {capacity} does not match the backup's {before['StorageCapacity']}"
        )
    if request.get("StorageType", before["StorageType"]) != before["StorageType"]:
        raise AwsError("IncompatibleParameterError", f"StorageType is not the backup's {before['StorageType']}")
    requested, original = request.get("LustreConfiguration") or {}, before.get("LustreConfiguration", {})
    for member in ("DeploymentType", "PerUnitStorageThroughput", "DataCompressionType"):
        if member in requested and requested[member] != original.get(member):
            message = f"{member} {requested[member]} is not the backup's {original.get(member)}"
            raise AwsError("IncompatibleParameterError", message)
