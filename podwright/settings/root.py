"""``cluster.yaml`` as a type: one section per resource, its default, and what it means.

A resource is either created by the foundation stack or one you have; ``source`` says which. ``podwright.check.rules``
knows which values are allowed beyond their type.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from podwright.settings.access import CreatedKey, CreatedRole, ExistingKey, ExistingRole, NoKey
from podwright.settings.cluster import Cluster, Training
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.nodes import Nodes
from podwright.settings.operations import (
    Budget,
    CreatedAccounting,
    CreatedPrometheus,
    Dashboard,
    ExistingAccounting,
    ExistingPrometheus,
    LocalAccounting,
    LocalState,
    Logs,
    NoAccounting,
    NoPrometheus,
    Notices,
    S3State,
    Session,
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


class Settings(Section):
    """One cluster and everything it needs."""

    name: str = Field(description="Name of the cluster, and the beginning of every other name.")
    region: str = Field(description="AWS region, such as us-west-2.")
    tags: Mapping[str, str] = Field({}, description="Tags on everything that is created.")
    network: Annotated[CreatedNetwork | CreatedSubnet | ExistingNetwork, Field(discriminator="source")] = Field(
        description="VPC, subnets and security group."
    )
    key: Annotated[CreatedKey | ExistingKey | NoKey, Field(discriminator="source")] = Field(
        NoKey(source="none"),
        description="What bucket, file systems, database, logs, metrics and notices are encrypted with.",
    )
    lustre: Annotated[CreatedLustre | ExistingLustre, Field(discriminator="source")] = Field(
        description="The shared file system."
    )
    openzfs: Annotated[CreatedOpenZfs | ExistingOpenZfs | NoOpenZfs, Field(discriminator="source")] = Field(
        NoOpenZfs(source="none"), description="Where people's homes are."
    )
    bucket: Annotated[CreatedBucket | ExistingBucket, Field(discriminator="source")] = Field(
        description="Where the nodes get their scripts from."
    )
    role: Annotated[CreatedRole | ExistingRole, Field(discriminator="source")] = Field(
        description="What the nodes may do in the account."
    )
    cluster: Cluster = Field(description="The nodes.")
    accounting: Annotated[
        LocalAccounting | CreatedAccounting | ExistingAccounting | NoAccounting, Field(discriminator="source")
    ] = Field(
        LocalAccounting(source="local"),
        description="Where Slurm remembers jobs; several controllers need a database of create or existing.",
    )
    logs: Logs | None = Field(None, description="How long logs are kept; none is for ever.")
    notices: Notices | None = Field(None, description="Who is told when something fails.")
    budget: Budget | None = Field(None, description="Who is told when it becomes dear.")
    dashboard: Dashboard = Field(Dashboard(source="none"), description="Graphs in CloudWatch.")
    prometheus: Annotated[NoPrometheus | CreatedPrometheus | ExistingPrometheus, Field(discriminator="source")] = Field(
        NoPrometheus(source="none"), description="Where nodes send metrics."
    )
    session: Session | None = Field(None, description="How people come to a node.")
    state: Annotated[LocalState | S3State, Field(discriminator="source")] = Field(
        LocalState(source="local"), description="Where Terraform remembers what it made."
    )
    nodes: Nodes = Field(Nodes(), description="What every node has besides.")
    training: Training = Field(Training(source="bundled"), description="What jobs run.")
