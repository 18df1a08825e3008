"""``cluster.yaml`` as a type: one section per resource, its default, and its description.

``source`` says whether the foundation stack creates a resource or uses an existing one. ``podwright.check.rules``
knows which values are allowed beyond their type.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr

from podwright.settings.access import (
    AssumedRole,
    CreatedKey,
    CreatedRole,
    ExistingKey,
    ExistingRole,
    IgnoredTags,
    NoKey,
)
from podwright.settings.cluster import ApiSlurm, ClusterSection, LifecycleSlurm, Training
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.nodes import NodesSection
from podwright.settings.operations import (
    BackendState,
    Budget,
    CreatedAccounting,
    CreatedPrometheus,
    Dashboard,
    ExistingAccounting,
    ExistingPrometheus,
    LocalAccounting,
    LocalState,
    LogsSection,
    NoAccounting,
    NoPrometheus,
    Notices,
    S3State,
    SessionSection,
)
from podwright.settings.section import Section
from podwright.settings.storage import (
    CreatedBucket,
    CreatedLustre,
    CreatedOpenZfs,
    ExistingBucket,
    ExistingLustre,
    ExistingOpenZfs,
    NoOpenZfs,
)
from podwright_constructs.problems import Path as KeyPath


class Settings(Section):
    """One cluster and everything it needs."""

    name: str = Field(description="Name of the cluster, and the prefix of every other name.")
    region: str = Field(description="AWS region, such as us-west-2.")
    account_id: str | None = Field(
        None,
        description="AWS account to deploy to: Terraform refuses the credentials of another, also to destroy. "
        "Default: the account of the first deployment, which only deployments and podwright's commands check.",
    )
    assume_role: AssumedRole | None = Field(
        None, description="Role of deployments in AWS. Default: your credentials as they are."
    )
    tags: Mapping[str, str] = Field({}, description="Tags on all created resources.")
    ignore_tags: IgnoredTags | None = Field(
        None, description="Tags of others that deployments leave as they are. Default: they remove them."
    )
    network: Annotated[CreatedNetwork | CreatedSubnet | ExistingNetwork, Field(discriminator="source")] = Field(
        description="VPC, subnets and security group."
    )
    key: Annotated[CreatedKey | ExistingKey | NoKey, Field(discriminator="source")] = Field(
        NoKey(source="none"),
        description="KMS key of bucket, file systems, database, logs, metrics and notices.",
    )
    lustre: Annotated[CreatedLustre | ExistingLustre, Field(discriminator="source")] = Field(
        description="The shared file system."
    )
    openzfs: Annotated[CreatedOpenZfs | ExistingOpenZfs | NoOpenZfs, Field(discriminator="source")] = Field(
        NoOpenZfs(source="none"), description="File system of the home directories."
    )
    bucket: Annotated[CreatedBucket | ExistingBucket, Field(discriminator="source")] = Field(
        description="Bucket with the lifecycle scripts and the training program."
    )
    role: Annotated[CreatedRole | ExistingRole, Field(discriminator="source")] = Field(
        description="IAM role of the nodes."
    )
    cluster: ClusterSection = Field(description="The SageMaker HyperPod cluster.")
    accounting: Annotated[
        LocalAccounting | CreatedAccounting | ExistingAccounting | NoAccounting, Field(discriminator="source")
    ] = Field(
        LocalAccounting(source="local"),
        description="Database of Slurm's job accounting; several controllers need create or existing.",
    )
    logs: LogsSection | None = Field(None, description="Retention of the cluster's logs. Default: for ever.")
    notices: Notices | None = Field(None, description="Email when something fails. Default: no email.")
    budget: Budget | None = Field(None, description="Email when costs approach a monthly budget. Default: no email.")
    dashboard: Dashboard = Field(Dashboard(source="none"), description="Dashboard in CloudWatch.")
    prometheus: Annotated[NoPrometheus | CreatedPrometheus | ExistingPrometheus, Field(discriminator="source")] = Field(
        NoPrometheus(source="none"), description="Workspace that nodes send metrics to."
    )
    session: SessionSection | None = Field(
        None, description="Session Manager document for shells on nodes. Default: no document."
    )
    state: Annotated[LocalState | S3State | BackendState, Field(discriminator="source")] = Field(
        LocalState(source="local"), description="Location of Terraform's state."
    )
    nodes: NodesSection = Field(
        NodesSection(), description="Users, mounts, health checks and other software of the nodes."
    )
    training: Training = Field(Training(source="bundled"), description="Training program for jobs.")

    _folder: Path = PrivateAttr(default=Path())
    _wrong_keys: Mapping[KeyPath, tuple[object, ...]] = PrivateAttr(default={})

    @property
    def has_own_scripts(self) -> bool:
        """Return True if nodes run podwright's scripts; by the API they do so if there is use for them."""
        slurm = self.cluster.slurm
        if not isinstance(slurm, ApiSlurm):
            return isinstance(slurm, LifecycleSlurm)
        publishes = self.notices is not None and self.notices.idle_hours is not None
        needed = self.training.source == "bundled" or publishes or self.nodes != NodesSection()
        needed = needed or not self.are_valid("nodes")  # A wrong setting of nodes needs the scripts, too.
        return needed and slurm.init_script is None

    def in_folder(self, folder: Path) -> "Settings":
        """Name the folder of the settings file, where its paths begin; return the settings."""
        self._folder = folder
        return self

    @property
    def added_requirements(self) -> Path | None:
        """Return the lock file of the packages that are added to the training environment, if there is one."""
        added = self.training.requirements
        return self.path(added) if added else None

    def with_wrong_keys(self, wrong_keys: Mapping[KeyPath, tuple[object, ...]]) -> "Settings":
        """Name the keys whose values are wrong or missing in the file, with values that they may have."""
        self._wrong_keys = wrong_keys
        return self

    @property
    def wrong_keys(self) -> Mapping[KeyPath, tuple[object, ...]]:
        """The keys whose values are wrong or missing in the file, with values that they may have."""
        return self._wrong_keys

    def is_wrong(self, path: KeyPath) -> bool:
        """Return whether the file's value at a path, or a section above it, is wrong or missing."""
        return any(path[:length] in self._wrong_keys for length in range(len(path) + 1))

    def are_valid(self, *keys: str) -> bool:
        """Return whether the file has no wrong value at, above or below these keys, in any item of a list.

        Args:
            keys: such as ``cluster.instance_groups.count``, without the index of an item.
        """
        wrong_keys = [tuple(key for key in path if isinstance(key, str)) for path in self._wrong_keys]
        paths = [tuple(key.split(".")) for key in keys]
        return not any(path[: len(wrong)] == wrong[: len(path)] for path in paths for wrong in wrong_keys)

    def path(self, relative: str) -> Path:
        """Return a path of the settings file."""
        return self._folder / relative
