"""Links between a Lustre file system's folders and S3: FSx's data repository associations.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateDataRepositoryAssociation.html
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from podwright_rehearsal.aws import clock
from podwright_rehearsal.aws.account import Account, random_id
from podwright_rehearsal.aws.aws_errors import AwsError

MOST_PER_FILE_SYSTEM = 8
DEFAULT_CHUNK_MIB = 1024


@dataclass
class Association:
    """One link; ``description`` is DescribeDataRepositoryAssociations' answer without state and tags."""

    description: dict[str, Any]
    available_at: float
    tags: dict[str, str] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        """Return the description with the current state and tags."""
        lifecycle = "AVAILABLE" if clock.now() >= self.available_at else "CREATING"
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return {**self.description, "Lifecycle": lifecycle, "Tags": tags}


class DataRepositories:
    """The associations of all file systems. Not thread-safe: the server calls it under its lock."""

    def __init__(self, *, account: Account, transition_s: float) -> None:
        self._account = account
        self._transition_s = transition_s
        self._by_id: dict[str, Association] = {}
        self._id_by_token: dict[str, str] = {}

    def create(self, request: Mapping[str, Any], file_system: Mapping[str, Any]) -> dict[str, Any]:
        """CreateDataRepositoryAssociation for a file system that exists."""
        token = request.get("ClientRequestToken", secrets.token_hex())
        if token in self._id_by_token:
            return {"Association": self.find(self._id_by_token[token]).view()}
        self._check(request, file_system)
        association_id = random_id("dra")
        file_system_id = request["FileSystemId"]
        description = {
            "AssociationId": association_id,
            "ResourceARN": self._account.arn("fsx", f"association/{file_system_id}/{association_id}"),
            "FileSystemId": file_system_id,
            "FileSystemPath": request["FileSystemPath"],
            "DataRepositoryPath": request["DataRepositoryPath"],
            "BatchImportMetaDataOnCreate": request.get("BatchImportMetaDataOnCreate", False),
            "ImportedFileChunkSize": request.get("ImportedFileChunkSize", DEFAULT_CHUNK_MIB),
            "S3": request.get("S3", {}),
            "CreationTime": clock.now(),
        }
        tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or []}
        self._by_id[association_id] = Association(description, clock.now() + self._transition_s, tags)
        self._id_by_token[token] = association_id
        return {"Association": self._by_id[association_id].view()}

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeDataRepositoryAssociations: those named, or all."""
        named = request.get("AssociationIds") or list(self._by_id)
        return {"Associations": [self.find(association_id).view() for association_id in named]}

    def update(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateDataRepositoryAssociation: other policies or stripes."""
        association = self.find(request["AssociationId"])
        association.description |= {key: request[key] for key in ("S3", "ImportedFileChunkSize") if key in request}
        return {"Association": association.view()}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DeleteDataRepositoryAssociation: gone at once.

        The Terraform provider (hashicorp/aws 5.100) takes the answer that it was not there as done, and would sleep
        for minutes after another one.
        """
        self.find(request["AssociationId"])
        del self._by_id[request["AssociationId"]]
        raise _not_found(request["AssociationId"])

    def all(self) -> list[Association]:
        """Return every association."""
        return list(self._by_id.values())

    def of(self, file_system_id: str) -> list[Association]:
        """Return the associations of a file system."""
        return [item for item in self._by_id.values() if item.description["FileSystemId"] == file_system_id]

    def forget(self, file_system_id: str) -> None:
        """Delete the associations of a deleted file system."""
        for association in self.of(file_system_id):
            del self._by_id[association.description["AssociationId"]]

    def find(self, association_id: str) -> Association:
        """Return the association; raise ``AwsError`` if it does not exist."""
        if association_id not in self._by_id:
            raise _not_found(association_id)
        return self._by_id[association_id]

    def _check(self, request: Mapping[str, Any], file_system: Mapping[str, Any]) -> None:
        if file_system["FileSystemType"] != "LUSTRE":
            raise AwsError("IncompatibleParameterError", "Only Lustre file systems have data repositories")
        if file_system["FileSystemTypeVersion"] == "2.10":
            raise AwsError("IncompatibleParameterError", "Lustre 2.10 file systems have no data repositories")
        path, source = request["FileSystemPath"], request["DataRepositoryPath"]
        if not path.startswith("/"):
            raise AwsError("BadRequest", f"FileSystemPath {path} must begin with /")
        bucket, _, _ = source.removeprefix("s3://").partition("/")
        if not source.startswith("s3://") or not self._account.has_bucket(bucket):
            raise AwsError("BadRequest", f"DataRepositoryPath {source} names no bucket that FSx can reach")
        linked_paths = [item.description["FileSystemPath"] for item in self.of(request["FileSystemId"])]
        if len(linked_paths) == MOST_PER_FILE_SYSTEM:
            raise AwsError("ServiceLimitExceeded", f"A file system has at most {MOST_PER_FILE_SYSTEM} associations")
        for linked_path in linked_paths:
            if PurePosixPath(path).is_relative_to(linked_path) or PurePosixPath(linked_path).is_relative_to(path):
                raise AwsError("BadRequest", f"FileSystemPath {path} overlaps with {linked_path}")


def _not_found(association_id: str) -> AwsError:
    return AwsError("DataRepositoryAssociationNotFound", f"Association '{association_id}' does not exist.")
