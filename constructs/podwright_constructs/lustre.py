"""The file system that all nodes share: an FSx for Lustre you have, or one made here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.fsx_lustre_file_system import FsxLustreFileSystem
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse


class Lustre(Protocol):
    """What a node needs to mount a Lustre file system."""

    @property
    def dns_name(self) -> str:
        """DNS name of the metadata server."""

    @property
    def mount_name(self) -> str:
        """The name FSx gave it, the part after ``@tcp:/``."""

    @property
    def mount_path(self) -> str:
        """Where every node mounts it."""


@dataclass(frozen=True, kw_only=True)
class ExistingLustre:
    """A file system you have, reachable from the nodes' security group.

    Raises:
        InvalidArgumentsError: a name is malformed; all problems are in it.
    """

    dns_name: str
    mount_name: str
    mount_path: str = "/fsx"

    def __post_init__(self) -> None:
        problems = checks.existing_lustre(
            dns_name=self.dns_name, mount_name=self.mount_name, mount_path=self.mount_path
        )
        refuse(self, problems)


class LustreFileSystem(Construct):
    """A PERSISTENT_2 file system on SSD in the first subnet of a network.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-fsx-lustre.html

    Raises:
        InvalidArgumentsError: a capacity or throughput that FSx does not sell; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        network: Network,
        capacity_gib: int = 1200,
        throughput_mbps_per_tib: int = 250,
        mount_path: str = "/fsx",
    ) -> None:
        problems = checks.lustre_file_system(
            capacity_gib=capacity_gib, throughput_mbps_per_tib=throughput_mbps_per_tib, mount_path=mount_path
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        file_system = FsxLustreFileSystem(
            self,
            "file_system",
            deployment_type="PERSISTENT_2",
            storage_type="SSD",
            storage_capacity=capacity_gib,
            per_unit_storage_throughput=throughput_mbps_per_tib,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            subnet_ids=[network.subnet_ids[0]],
            security_group_ids=[network.security_group_id],
            tags={"Name": self.node.path.replace("/", "-")},
            depends_on=before(self, network.security_group_rules),
        )
        self.dns_name = file_system.dns_name
        self.mount_name = file_system.mount_name
        self.mount_path = mount_path
