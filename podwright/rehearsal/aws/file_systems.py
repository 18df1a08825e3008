"""Amazon FSx for Lustre, as far as a deployment needs it.

https://docs.aws.amazon.com/fsx/latest/APIReference/Welcome.html
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podwright.rehearsal.aws import lustre_limits
from podwright.rehearsal.aws.account import ACCOUNT_ID, Account, SecurityGroup, Subnet, random_id
from podwright.rehearsal.aws.errors import AwsError

MOUNT_NAME_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # AWS's mount names, for example "vkqadbmv"
DEFAULT_VERSIONS = {"PERSISTENT_2": "2.15"}  # the others begin at 2.10
LUSTRE_DEFAULTS = {
    "DeploymentType": "SCRATCH_1",
    "DataCompressionType": "NONE",
    "WeeklyMaintenanceStartTime": "7:03:00",
    "CopyTagsToBackups": False,
    "LogConfiguration": {"Level": "DISABLED"},
}
PERSISTENT_DEFAULTS = {"AutomaticBackupRetentionDays": 0}


@dataclass
class FileSystem:
    """One file system: ``description`` is what DescribeFileSystems answers, but for what time changes."""

    description: dict[str, Any]
    available_at: float
    gone_at: float | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def lifecycle(self, now: float) -> str:
        """AWS's word for the state at this time."""
        if self.gone_at is not None:
            return "DELETING"
        return "AVAILABLE" if now >= self.available_at else "CREATING"


class FileSystems:
    """The service. Not thread-safe: the server calls it under its lock.

    Args:
        account: where subnets and security groups are looked up.
        transition_s: how long creating and deleting takes.
        instant_deletion: answer a deletion as already done. The Terraform provider (hashicorp/aws 5.100) sleeps for ten
            minutes after a deletion was accepted before it looks for the first time, and goes on at once after this.
    """

    def __init__(self, *, account: Account, transition_s: float, instant_deletion: bool) -> None:
        self._account = account
        self._transition_s = transition_s
        self._instant_deletion = instant_deletion
        self._by_id: dict[str, FileSystem] = {}
        self._id_by_token: dict[str, str] = {}
        self.operations = {
            "CreateFileSystem": self.create,
            "DescribeFileSystems": self.describe,
            "UpdateFileSystem": self.update,
            "DeleteFileSystem": self.delete,
            "TagResource": self.tag,
            "UntagResource": self.untag,
            "ListTagsForResource": self.list_tags,
        }

    def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateFileSystem: CREATING now, AVAILABLE after the transition; a repeated token creates nothing new."""
        token = request.get("ClientRequestToken", secrets.token_hex())
        if token in self._id_by_token:
            return {"FileSystem": self._view(self._find(self._id_by_token[token]))}
        if request.get("FileSystemType") != "LUSTRE":
            raise AwsError("BadRequest", f"The stand-in plays LUSTRE only, not {request.get('FileSystemType')}")
        lustre_limits.check(request)
        subnet = self._subnet(request.get("SubnetIds") or [])
        lustre_limits.check_network(self._security_groups(request.get("SecurityGroupIds"), subnet))
        file_system_id = random_id("fs")
        file_system = FileSystem(
            self._description(file_system_id, request, subnet),
            available_at=time.time() + self._transition_s,
            tags={tag["Key"]: tag["Value"] for tag in request.get("Tags") or []},
        )
        self._by_id[file_system_id] = file_system
        self._id_by_token[token] = file_system_id
        return {"FileSystem": self._view(file_system)}

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeFileSystems: those named, or all."""
        self._forget_deleted()
        named = request.get("FileSystemIds") or list(self._by_id)
        return {"FileSystems": [self._view(self._find(file_system_id)) for file_system_id in named]}

    def update(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateFileSystem: grow the capacity, change Lustre's settings."""
        file_system = self._find(request["FileSystemId"])
        old = file_system.description
        capacity_gib = request.get("StorageCapacity", old["StorageCapacity"])
        if capacity_gib < old["StorageCapacity"]:
            raise AwsError(
                "BadRequest",
                f"Storage capacity can only grow: {capacity_gib} GiB is below {old['StorageCapacity']} GiB",
            )
        configuration = {**old["LustreConfiguration"], **(request.get("LustreConfiguration") or {})}
        new = {**old, "StorageCapacity": capacity_gib, "LustreConfiguration": configuration}
        lustre_limits.check(new)
        new["AdministrativeActions"] = [
            {"AdministrativeActionType": "FILE_SYSTEM_UPDATE", "RequestTime": time.time(), "Status": "COMPLETED"}
        ]
        file_system.description = new
        return {"FileSystem": self._view(file_system)}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DeleteFileSystem: DELETING now, FileSystemNotFound after the transition."""
        file_system = self._find(request["FileSystemId"])
        if self._instant_deletion:
            del self._by_id[request["FileSystemId"]]
            raise _not_found(request["FileSystemId"])
        if file_system.gone_at is None:
            file_system.gone_at = time.time() + self._transition_s
        return {"FileSystemId": request["FileSystemId"], "Lifecycle": "DELETING", "LustreResponse": {}}

    def tag(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """TagResource."""
        self._find_arn(request["ResourceARN"]).tags.update({tag["Key"]: tag["Value"] for tag in request["Tags"]})
        return {}

    def untag(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UntagResource."""
        tags = self._find_arn(request["ResourceARN"]).tags
        for key in request["TagKeys"]:
            tags.pop(key, None)
        return {}

    def list_tags(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListTagsForResource."""
        return {"Tags": _tag_list(self._find_arn(request["ResourceARN"]).tags)}

    def _find(self, file_system_id: str) -> FileSystem:
        self._forget_deleted()
        if file_system_id not in self._by_id:
            raise _not_found(file_system_id)
        return self._by_id[file_system_id]

    def _find_arn(self, arn: str) -> FileSystem:
        return self._find(arn.rpartition("/")[2])

    def _forget_deleted(self) -> None:
        now = time.time()
        self._by_id = {
            file_system_id: file_system
            for file_system_id, file_system in self._by_id.items()
            if file_system.gone_at is None or now < file_system.gone_at
        }

    def _subnet(self, subnet_ids: list[str]) -> Subnet:
        if len(subnet_ids) != 1:
            raise AwsError("BadRequest", f"A Lustre file system needs exactly one subnet, not {len(subnet_ids)}")
        subnet = self._account.subnet(subnet_ids[0])
        if subnet is None:
            raise AwsError(
                "InvalidNetworkSettings", f"Subnet {subnet_ids[0]} does not exist", InvalidSubnetId=subnet_ids[0]
            )
        return subnet

    def _security_groups(self, group_ids: list[str] | None, subnet: Subnet) -> list[SecurityGroup]:
        if not group_ids:
            return [self._account.default_security_group(subnet.vpc_id)]
        groups = []
        for group_id in group_ids:
            group = self._account.security_group(group_id)
            if group is None or group.vpc_id != subnet.vpc_id:
                raise AwsError(
                    "InvalidNetworkSettings",
                    f"Security group {group_id} does not exist in {subnet.vpc_id}, the VPC of {subnet.subnet_id}",
                    InvalidSecurityGroupId=group_id,
                )
            groups.append(group)
        return groups

    def _description(self, file_system_id: str, request: Mapping[str, Any], subnet: Subnet) -> dict[str, Any]:
        asked = request.get("LustreConfiguration") or {}
        deployment = asked.get("DeploymentType", LUSTRE_DEFAULTS["DeploymentType"])
        defaults = LUSTRE_DEFAULTS | (PERSISTENT_DEFAULTS if deployment.startswith("PERSISTENT") else {})
        mount_name = (
            "fsx" if deployment == "SCRATCH_1" else "".join(secrets.choice(MOUNT_NAME_ALPHABET) for _ in range(8))
        )
        return {
            "OwnerId": ACCOUNT_ID,
            "CreationTime": time.time(),
            "FileSystemId": file_system_id,
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": request.get("FileSystemTypeVersion", DEFAULT_VERSIONS.get(deployment, "2.10")),
            "StorageCapacity": request["StorageCapacity"],
            "StorageType": request.get("StorageType", "SSD"),
            "VpcId": subnet.vpc_id,
            "SubnetIds": [subnet.subnet_id],
            "NetworkInterfaceIds": [],
            "DNSName": f"{file_system_id}.fsx.{self._account.region}.amazonaws.com",
            "KmsKeyId": request.get("KmsKeyId", self._account.arn("kms", "alias/aws/fsx")),
            "ResourceARN": self._account.arn("fsx", f"file-system/{file_system_id}"),
            "LustreConfiguration": {**defaults, **asked, "MountName": mount_name},
        }

    def _view(self, file_system: FileSystem) -> dict[str, Any]:
        return {
            **file_system.description,
            "Lifecycle": file_system.lifecycle(time.time()),
            "Tags": _tag_list(file_system.tags),
        }


def _not_found(file_system_id: str) -> AwsError:
    return AwsError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.")


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
