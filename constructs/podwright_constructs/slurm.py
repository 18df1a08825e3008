"""Slurm that HyperPod itself sets up from the API ("API mode"), without provisioning_parameters.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from podwright_constructs import checks
from podwright_constructs.accounting import AccountingDatabase
from podwright_constructs.arguments.instance_group import InstanceGroup
from podwright_constructs.kit import ITerraformDependable
from podwright_constructs.lustre import Lustre
from podwright_constructs.problems import refuse

Strategy = Literal["managed", "overwrite", "merge"]


class HomeFileSystem(Protocol):
    """The attributes that HyperPod needs to mount a file system over NFS, such as FSx for OpenZFS."""

    @property
    def dns_name(self) -> str:
        """Its DNS name."""

    @property
    def mount_path(self) -> str:
        """Path where every node mounts it."""


class NodeScripts(Protocol):
    """Scripts that every node runs when HyperPod has set it up: an ``InitScript``, or a ``LifecycleBundle``."""

    @property
    def source_s3_uri(self) -> str:
        """Prefix that a node downloads."""

    @property
    def on_init_complete(self) -> str:
        """File below the prefix that a node runs as root."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """Resources that are created before the nodes and destroyed after them."""


@dataclass(frozen=True, kw_only=True)
class InitScript:
    """A script in S3 that every node runs when HyperPod has set it up; no provisioning_parameters.json beside it.

    Raises:
        InvalidArgumentsError: SageMaker would not read it there; all problems are in it.
    """

    source_s3_uri: str
    on_init_complete: str
    ready: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        refuse(self, checks.init_script(source_s3_uri=self.source_s3_uri, on_init_complete=self.on_init_complete))


@dataclass(frozen=True, kw_only=True)
class ApiSlurm:
    """Slurm by the API: HyperPod writes slurm.conf and mounts the file systems.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config.html

    Attributes:
        strategy: what happens to partitions that were edited on the controller: ``managed`` stops the update,
            ``overwrite`` loses the edits, ``merge`` keeps them. None with continuous provisioning.
        lustre: what HyperPod mounts on every node.
        home: what it mounts besides, at /home as a rule.
        init_script: what every node runs afterwards; of podwright's own scripts a ``LifecycleBundle``
            whose ``facts`` say ``slurm_by_api``.
        accounting: slurmdbd's database; with continuous provisioning alone.
        database_name: the schema there. Default: one of HyperPod's that has the cluster's id.
    """

    strategy: Strategy | None = "managed"
    lustre: Lustre | None = None
    home: HomeFileSystem | None = None
    init_script: NodeScripts | None = None
    accounting: AccountingDatabase | None = None
    database_name: str | None = None

    def __post_init__(self) -> None:
        """Check the name of the schema.

        Raises:
            InvalidArgumentsError: SageMaker would refuse it.
        """
        refuse(self, checks.schema_name(self.database_name))

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """The resources that a node depends on."""
        accounting = self.accounting.ready if self.accounting else ()
        return [*accounting, *(self.init_script.ready if self.init_script else ())]

    def orchestrator(self) -> dict[str, Any]:
        """The cluster's ``Orchestrator``."""
        slurm: dict[str, Any] = {}
        if self.strategy:
            slurm["SlurmConfigStrategy"] = self.strategy.capitalize()
        if self.accounting:
            slurm["AccountingDatabase"] = {
                "Endpoint": self.accounting.endpoint,
                "Port": self.accounting.port,
                "SecretArn": self.accounting.secret_arn,
                "Name": self.database_name,
            }
        return {"Slurm": slurm}

    def instance_group(self, group: InstanceGroup) -> dict[str, Any]:
        """Return an instance group's Slurm configuration."""
        config: dict[str, Any] = {"NodeType": group.role.capitalize()}
        if group.partition_name:
            config["PartitionNames"] = [group.partition_name]
        described: dict[str, Any] = {"SlurmConfig": config}
        if self.init_script:
            described["LifeCycleConfig"] = {
                "SourceS3Uri": self.init_script.source_s3_uri,
                "OnInitComplete": self.init_script.on_init_complete,
            }
        return described

    def storage(self) -> list[dict[str, Any]]:
        """The file systems as an instance group's storage."""
        mounts: list[dict[str, Any]] = []
        if self.lustre:
            lustre = {"DnsName": self.lustre.dns_name, "MountName": self.lustre.mount_name}
            mounts.append({"FsxLustreConfig": {**lustre, "MountPath": self.lustre.mount_path}})
        if self.home:
            mounts.append({"FsxOpenZfsConfig": {"DnsName": self.home.dns_name, "MountPath": self.home.mount_path}})
        return mounts
