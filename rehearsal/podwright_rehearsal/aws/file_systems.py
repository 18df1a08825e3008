"""The part of Amazon FSx for Lustre and OpenZFS that a deployment needs.

https://docs.aws.amazon.com/fsx/latest/APIReference/Welcome.html
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from podwright_rehearsal.aws import clock, lustre_limits, openzfs_limits
from podwright_rehearsal.aws.account import Account, Host, SecurityGroup, Subnet, random_id
from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.backups import Backup, Backups, check_backup, check_restore
from podwright_rehearsal.aws.contents import Contents
from podwright_rehearsal.aws.data_repositories import Association, DataRepositories
from podwright_rehearsal.aws.identity import ACCOUNT_ID

MOUNT_NAME_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # AWS's mount names, for example "vkqadbmv"
CONFIGURATIONS = {"LUSTRE": "LustreConfiguration", "OPENZFS": "OpenZFSConfiguration"}
LUSTRE_DEFAULTS = {
    "DeploymentType": "SCRATCH_1",
    "DataCompressionType": "NONE",
    "WeeklyMaintenanceStartTime": "7:03:00",
    "CopyTagsToBackups": False,
    "LogConfiguration": {"Level": "DISABLED"},
    "EfaEnabled": False,
}
PERSISTENT_DEFAULTS = {"AutomaticBackupRetentionDays": 0}
OPENZFS_DEFAULTS = {
    "AutomaticBackupRetentionDays": 0,
    "CopyTagsToBackups": False,
    "CopyTagsToVolumes": False,
    "WeeklyMaintenanceStartTime": "7:03:00",
}
ROOT_VOLUME_DEFAULTS = {
    "CopyTagsToSnapshots": False,
    "DataCompressionType": "NONE",
    "ReadOnly": False,
    "RecordSizeKiB": 128,
    "VolumePath": "/fsx",
    "NfsExports": [{"ClientConfigurations": [{"Clients": "*", "Options": ["rw", "crossmnt"]}]}],
    "UserAndGroupQuotas": [],
}
OPENZFS_IOPS_PER_GIB = 3
FOUND_BY_FSX = {
    "MountName",
    "RootVolumeId",
    "EndpointIpAddress",
}  # FSx chooses these members anew for each file system.


# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html and, for NFS,
# https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/limit-access-security-groups.html
PORTS = {"LUSTRE": 988, "OPENZFS": 2049}


@dataclass
class FileSystem:
    """One file system: ``description`` is DescribeFileSystems' answer without members that change over time."""

    description: dict[str, Any]
    available_at: float
    gone_at: float | None = None
    root_volume: dict[str, Any] = field(default_factory=dict)  # DescribeVolumes' answer, empty for Lustre.
    tags: dict[str, str] = field(default_factory=dict)

    def lifecycle(self, now: float) -> str:
        """Return AWS's name of the state at this time."""
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
        contents: the files of file systems and backups. Default: all are empty.
        elsewhere: gives the service of another region. Default: there is no other region.
    """

    def __init__(
        self,
        *,
        account: Account,
        transition_s: float,
        instant_deletion: bool,
        contents: Contents | None = None,
        elsewhere: Callable[[str], FileSystems] | None = None,
    ) -> None:
        self._account = account
        self._contents = contents or Contents(None)
        self._transition_s = transition_s
        self._instant_deletion = instant_deletion
        self._by_id: dict[str, FileSystem] = {}
        self._id_by_token: dict[str, str] = {}
        self._repositories = DataRepositories(account=account, transition_s=transition_s)

        def backups_of(region: str) -> Backups:
            if elsewhere is None:
                raise AwsError("InvalidRegion", f"The region {region} does not exist")
            return elsewhere(region).backups

        self.backups = Backups(
            account=account, contents=self._contents, transition_s=transition_s, elsewhere=backups_of
        )
        self.operations = {
            "CreateFileSystem": self.create,
            "DescribeFileSystems": self.describe,
            "UpdateFileSystem": self.update,
            "DeleteFileSystem": self.delete,
            "DescribeVolumes": self.describe_volumes,
            "UpdateVolume": self.update_volume,
            "CreateFileSystemFromBackup": self.restore,
            "CreateBackup": self.back_up,
            **self.backups.operations,
            "CreateDataRepositoryAssociation": self.link,
            "DescribeDataRepositoryAssociations": self._repositories.describe,
            "UpdateDataRepositoryAssociation": self._repositories.update,
            "DeleteDataRepositoryAssociation": self._repositories.delete,
            "TagResource": self.tag,
            "UntagResource": self.untag,
            "ListTagsForResource": self.list_tags,
        }

    def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateFileSystem: CREATING now, AVAILABLE after the transition; a repeated token has no effect."""
        return self._create(request, like=None)

    def restore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateFileSystemFromBackup: as CreateFileSystem, with the backup's files and settings."""
        backup = self.backups.find(request["BackupId"])
        check_restore(request, backup)
        before = backup.description["FileSystem"]
        kind = before["FileSystemType"]
        configuration = CONFIGURATIONS[kind]
        if kind == "OPENZFS" and configuration not in request:
            raise AwsError("MissingFileSystemConfiguration", "OpenZFSConfiguration is required")
        restored = {key: value for key, value in before[configuration].items() if key not in FOUND_BY_FSX}
        restored |= request.get(configuration) or {}
        inherited = {key: before[key] for key in ("FileSystemTypeVersion", "StorageType") if key in before}
        defaults = {"FileSystemType": kind, "StorageCapacity": before["StorageCapacity"], **inherited}
        return self._create({**defaults, **request, configuration: restored}, like=request["BackupId"])

    def _create(self, request: Mapping[str, Any], *, like: str | None) -> dict[str, Any]:
        token = request.get("ClientRequestToken", secrets.token_hex())
        if token in self._id_by_token:
            return {"FileSystem": self._view(self._find(self._id_by_token[token]))}
        kind = request.get("FileSystemType")
        if kind not in CONFIGURATIONS:
            raise AwsError("BadRequest", f"The stand-in emulates {' and '.join(CONFIGURATIONS)}, not {kind}")
        file_system_id = random_id("fs")
        make = self._lustre if kind == "LUSTRE" else self._openzfs
        file_system = make(file_system_id, request)
        file_system.tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or []}
        self._contents.make(file_system_id, like=like)
        self._by_id[file_system_id] = file_system
        self._name(file_system, request)
        self._id_by_token[token] = file_system_id
        return {"FileSystem": self._view(file_system)}

    def _name(self, file_system: FileSystem, request: Mapping[str, Any]) -> None:
        """Add the file system's DNS name, with its network, to the account's host names."""
        description = file_system.description
        (subnet, *_) = self._subnets(description["SubnetIds"])
        groups = self._security_groups(request.get("SecurityGroupIds"), subnet)
        port = PORTS[description["FileSystemType"]]
        host = Host(description["VpcId"], tuple(group.group_id for group in groups), port)
        self._account.file_systems[description["DNSName"]] = host

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeFileSystems: those named, or all."""
        self._forget_deleted()
        named = request.get("FileSystemIds") or list(self._by_id)
        return {"FileSystems": [self._view(self._find(file_system_id)) for file_system_id in named]}

    def update(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateFileSystem: grow the capacity, change the settings of its kind."""
        file_system = self._find(request["FileSystemId"])
        old = file_system.description
        capacity_gib = request.get("StorageCapacity", old["StorageCapacity"])
        if capacity_gib < old["StorageCapacity"]:
            raise AwsError(
                "BadRequest",
                f"Storage capacity can only grow: {capacity_gib} GiB is below {old['StorageCapacity']} GiB",
            )
        key = CONFIGURATIONS[old["FileSystemType"]]
        configuration = {**old[key], **(request.get(key) or {})}
        new = {**old, "StorageCapacity": capacity_gib, key: configuration}
        (lustre_limits if key == "LustreConfiguration" else openzfs_limits).check(new)
        new["AdministrativeActions"] = [
            {"AdministrativeActionType": "FILE_SYSTEM_UPDATE", "RequestTime": clock.now(), "Status": "COMPLETED"}
        ]
        file_system.description = new
        return {"FileSystem": self._view(file_system)}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DeleteFileSystem: DELETING now, FileSystemNotFound after the transition; a last backup stays."""
        file_system_id = request["FileSystemId"]
        file_system = self._find(file_system_id)
        self._back_up_last(file_system, request)
        self._repositories.forget(file_system_id)
        self._contents.remove(file_system_id)
        if self._instant_deletion:
            del self._by_id[file_system_id]
            raise _not_found(file_system_id)
        if file_system.gone_at is None:
            file_system.gone_at = clock.now() + self._transition_s
        return {"FileSystemId": file_system_id, "Lifecycle": "DELETING", "LustreResponse": {}}

    def describe_volumes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeVolumes: the root volumes of OpenZFS."""
        self._forget_deleted()
        volumes = {item.root_volume["VolumeId"]: item.root_volume for item in self._by_id.values() if item.root_volume}
        named = request.get("VolumeIds") or list(volumes)
        for volume_id in named:
            if volume_id not in volumes:
                raise AwsError("VolumeNotFound", f"Volume '{volume_id}' does not exist.")
        return {"Volumes": [volumes[volume_id] for volume_id in named]}

    def update_volume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateVolume: the root volume's settings."""
        (volume,) = self.describe_volumes({"VolumeIds": [request["VolumeId"]]})["Volumes"]
        volume["OpenZFSConfiguration"] |= request.get("OpenZFSConfiguration") or {}
        return {"Volume": volume}

    def back_up(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateBackup."""
        file_system = self._find(request["FileSystemId"])
        linked = bool(self._repositories.of(request["FileSystemId"]))
        return self.backups.create(request, self._view(file_system), self._tags_of_backup(file_system), linked=linked)

    def link(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateDataRepositoryAssociation."""
        return self._repositories.create(request, self._find(request["FileSystemId"]).description)

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

    def tagged(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield ARN and tags of every file system, association and backup."""
        self._forget_deleted()
        for file_system in self._by_id.values():
            yield file_system.description["ResourceARN"], file_system.tags
        for link in self._repositories.all():
            yield link.description["ResourceARN"], link.tags
        for backup in self.backups.all():
            yield backup.description["ResourceARN"], backup.tags

    def _find(self, file_system_id: str) -> FileSystem:
        self._forget_deleted()
        if file_system_id not in self._by_id:
            raise _not_found(file_system_id)
        return self._by_id[file_system_id]

    def _find_arn(self, arn: str) -> FileSystem | Association | Backup:
        name = arn.rpartition("/")[2]
        if name.startswith("backup-"):
            return self.backups.find(name)
        return self._repositories.find(name) if name.startswith("dra-") else self._find(name)

    def _forget_deleted(self) -> None:
        now = clock.now()
        self._by_id = {
            file_system_id: file_system
            for file_system_id, file_system in self._by_id.items()
            if file_system.gone_at is None or now < file_system.gone_at
        }

    def _back_up_last(self, file_system: FileSystem, request: Mapping[str, Any]) -> None:
        """Make the final backup: of Lustre if requested, of OpenZFS unless skipped."""
        kind = file_system.description["FileSystemType"]
        requested = request.get(CONFIGURATIONS[kind]) or {}
        if requested.get("SkipFinalBackup", kind == "LUSTRE"):
            return
        linked = bool(self._repositories.of(file_system.description["FileSystemId"]))
        check_backup(file_system.description, linked=linked)
        self.backups.add(file_system.description, self._tags_of_backup(file_system), ready=True)

    def _tags_of_backup(self, file_system: FileSystem) -> dict[str, str]:
        configuration = file_system.description[CONFIGURATIONS[file_system.description["FileSystemType"]]]
        return dict(file_system.tags) if configuration.get("CopyTagsToBackups") else {}

    def _subnets(self, subnet_ids: list[str]) -> list[Subnet]:
        subnets = []
        for subnet_id in subnet_ids:
            subnet = self._account.subnet(subnet_id)
            if subnet is None:
                raise AwsError(
                    "InvalidNetworkSettings", f"Subnet {subnet_id} does not exist", InvalidSubnetId=subnet_id
                )
            subnets.append(subnet)
        return subnets

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

    def _lustre(self, file_system_id: str, request: Mapping[str, Any]) -> FileSystem:
        lustre_limits.check(request)
        subnets = self._subnets(request.get("SubnetIds") or [])
        if len(subnets) != 1:
            raise AwsError("BadRequest", f"A Lustre file system needs exactly one subnet, not {len(subnets)}")
        lustre_limits.check_network(self._security_groups(request.get("SecurityGroupIds"), subnets[0]))
        requested = request.get("LustreConfiguration") or {}
        deployment = requested.get("DeploymentType", LUSTRE_DEFAULTS["DeploymentType"])
        defaults = LUSTRE_DEFAULTS | (PERSISTENT_DEFAULTS if deployment.startswith("PERSISTENT") else {})
        mount_name = (
            "fsx" if deployment == "SCRATCH_1" else "".join(secrets.choice(MOUNT_NAME_ALPHABET) for _ in range(8))
        )
        configuration = {**defaults, **requested, "MountName": mount_name}
        metadata = requested.get("MetadataConfiguration")
        if metadata and metadata["Mode"] == "AUTOMATIC":
            iops = lustre_limits.metadata_iops(request["StorageCapacity"])
            configuration["MetadataConfiguration"] = {**metadata, "Iops": iops}
        newest = "2.15" if metadata else "2.12"
        version = request.get("FileSystemTypeVersion", newest if deployment == "PERSISTENT_2" else "2.10")
        description = self._description(file_system_id, request, subnets)
        description |= {"FileSystemTypeVersion": version, "LustreConfiguration": configuration}
        return FileSystem(description, available_at=clock.now() + self._transition_s)

    def _openzfs(self, file_system_id: str, request: Mapping[str, Any]) -> FileSystem:
        openzfs_limits.check(request)
        subnets = self._subnets(request.get("SubnetIds") or [])
        openzfs_limits.check_subnets(request, subnets)
        self._security_groups(request.get("SecurityGroupIds"), subnets[0])
        requested = dict(request["OpenZFSConfiguration"])
        volume = {**ROOT_VOLUME_DEFAULTS, **(requested.pop("RootVolumeConfiguration", None) or {})}
        volume_id = random_id("fsvol")
        iops = {"Mode": "AUTOMATIC", "Iops": OPENZFS_IOPS_PER_GIB * request["StorageCapacity"]}
        configuration = {
            **OPENZFS_DEFAULTS,
            "DiskIopsConfiguration": iops,
            **requested,
            "RootVolumeId": volume_id,
            "EndpointIpAddress": next(iter(subnets[0].usable_addresses())),
        }
        root_volume = {
            "VolumeId": volume_id,
            "FileSystemId": file_system_id,
            "VolumeType": "OPENZFS",
            "Name": "fsx",
            "Lifecycle": "AVAILABLE",
            "ResourceARN": self._account.arn("fsx", f"volume/{file_system_id}/{volume_id}"),
            "OpenZFSConfiguration": volume,
        }
        description = self._description(file_system_id, request, subnets)
        description["OpenZFSConfiguration"] = configuration
        return FileSystem(description, available_at=clock.now() + self._transition_s, root_volume=root_volume)

    def _description(self, file_system_id: str, request: Mapping[str, Any], subnets: list[Subnet]) -> dict[str, Any]:
        """Return the members that every kind of file system has."""
        return {
            "OwnerId": ACCOUNT_ID,
            "CreationTime": clock.now(),
            "FileSystemId": file_system_id,
            "FileSystemType": request["FileSystemType"],
            "StorageCapacity": request.get("StorageCapacity", 0),
            "StorageType": request.get("StorageType", "SSD"),
            "VpcId": subnets[0].vpc_id,
            "SubnetIds": [subnet.subnet_id for subnet in subnets],
            "NetworkInterfaceIds": [],
            "DNSName": f"{file_system_id}.fsx.{self._account.region}.amazonaws.com",
            "KmsKeyId": request.get("KmsKeyId", self._account.arn("kms", "alias/aws/fsx")),
            "ResourceARN": self._account.arn("fsx", f"file-system/{file_system_id}"),
        }

    def _view(self, file_system: FileSystem) -> dict[str, Any]:
        return {
            **file_system.description,
            "Lifecycle": file_system.lifecycle(clock.now()),
            "Tags": _tag_list(file_system.tags),
        }


def _not_found(file_system_id: str) -> AwsError:
    return AwsError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.")


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
