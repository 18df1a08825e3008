"""The sections of ``cluster.yaml`` about running a cluster: each is off unless asked for."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts


class LocalAccounting(Section):
    """MariaDB on the controller: sacct knows every job until the controller is replaced, and the database with it."""

    source: Literal["local"] = Field(description="A database on the controller.")


class NoAccounting(Section):
    """Slurm forgets a job minutes after its end."""

    source: Literal["none"] = Field(description="No accounting.")


class CreatedAccounting(Section):
    """An RDS for MariaDB in subnets of its own; its password is in Secrets Manager and in no state."""

    source: Literal["create"] = Field(description="A new database.")
    subnet_cidrs: Mapping[str, str] = Field(
        description="Blocks of the VPC for it by the id of their zone, two zones at least, as usw2-az1: 10.0.1.0/28."
    )
    instance_class: str = Field("db.t4g.medium", description="RDS's class.")
    storage_gib: int = Field(50, description=f"Storage, {facts.MIN_DATABASE_STORAGE_GIB} GiB at least.")
    on_destroy: Literal["retain", "destroy"] = Field(
        "retain", description="retain refuses to destroy the database, destroy deletes it without a snapshot."
    )


class ExistingAccounting(Section):
    """A MySQL or MariaDB of yours that lets the nodes' security group in."""

    source: Literal["existing"] = Field(description="A database you have.")
    endpoint: str = Field(description="Its host name.")
    port: int = Field(facts.MYSQL_PORT, description="Its TCP port.")
    secret_arn: str = Field(description="The Secrets Manager secret with its username and password.")


DatabaseAccounting = CreatedAccounting | ExistingAccounting  # one that outlives the controller


class NoPrometheus(Section):
    """No metrics leave the nodes."""

    source: Literal["none"] = Field(description="No workspace.")


class CreatedPrometheus(Section):
    """An Amazon Managed Service for Prometheus workspace."""

    source: Literal["create"] = Field(description="A new workspace.")


class ExistingPrometheus(Section):
    """A workspace of yours."""

    source: Literal["existing"] = Field(description="A workspace you have.")
    arn: str = Field(description="Its ARN: the created role may write to it.")
    remote_write_url: str = Field(description="Where metrics are sent to.")


class Logs(Section):
    """The cluster's log group, which HyperPod makes."""

    retention_days: int = Field(description="How long CloudWatch keeps what nodes print, such as 30 or 365.")


class Notices(Section):
    """A mail when the cluster fails or a node is unhealthy."""

    email: str = Field(description="Who gets it; AWS asks the address once.")


class Budget(Section):
    """A mail at 80 % and 100 % of a month's budget, and when 100 % is to be expected."""

    monthly_usd: int = Field(description="The budget of everything that carries the cluster's tag, podwright:cluster.")
    email: str = Field(description="Who gets it.")


class Session(Section):
    """A Session Manager document: a shell of ubuntu, not of root."""

    idle_minutes: int = Field(
        20, description=f"When a silent session ends, {facts.MIN_IDLE_MINUTES} to {facts.MAX_IDLE_MINUTES}."
    )


class Dashboard(Section):
    """Graphs of the file system and the nodes' complaints in CloudWatch."""

    source: Literal["create", "none"] = Field("none", description="create makes a dashboard.")


class LocalState(Section):
    """Terraform's state beside the settings: for one person."""

    source: Literal["local"] = Field(description="terraform.STACK.tfstate in the working directory.")


class S3State(Section):
    """Terraform's state in S3, locked there while somebody deploys: for a team. Terraform 1.10 or newer."""

    source: Literal["s3"] = Field(description="An S3 bucket you have, versioned.")
    bucket: str = Field(description="Its name; not the bucket of this file.")
    region: str | None = Field(None, description="Its region; none is the cluster's.")
    key_arn: str | None = Field(None, description="KMS key of the state; none is the bucket's own encryption.")
