"""The sections of ``cluster.yaml`` about operating a cluster; each is off by default."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts
from podwright_constructs.arguments.accounting import ExistingAccountingArguments

_DATABASE_NAME = Field(
    None,
    description="Name of the schema that HyperPod makes there, with `slurm: {source: api}`. "
    "Default: slurm_acct_db_ and the cluster's id.",
)


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
        {},
        description="CIDR blocks of its new subnets by zone id, at least two zones, such as usw2-az1: 10.0.1.0/28. "
        "Default: subnet_ids instead.",
    )
    subnet_ids: tuple[str, ...] = Field(
        (),
        description="Existing subnets of the network's VPC in at least two zones, subnet-…, which may be shared by "
        "another account, instead of subnet_cidrs. Default: new subnets.",
    )
    instance_class: str = Field("db.t4g.medium", description="Instance class of the database.")
    storage_gib: int = Field(50, description=f"Storage, {facts.MIN_DATABASE_STORAGE_GIB} GiB at least.")
    on_destroy: Literal["retain", "backup", "destroy"] = Field(
        "retain",
        description="retain refuses to destroy the database, backup deletes it after a last snapshot, which stays, "
        "destroy deletes it without one.",
    )
    database_name: str | None = _DATABASE_NAME


class ExistingAccounting(Section, ExistingAccountingArguments):
    """An existing MySQL or MariaDB that admits the nodes' security group."""

    database_name: str | None = _DATABASE_NAME
    source: Literal["existing"] = Field(description="An existing database.")


DatabaseAccounting = CreatedAccounting | ExistingAccounting  # one that outlives the controller


class NoPrometheus(Section):
    """No metrics leave the nodes."""

    source: Literal["none"] = Field(description="No workspace.")


class CreatedPrometheus(Section):
    """An Amazon Managed Service for Prometheus workspace."""

    source: Literal["create"] = Field(description="A new workspace.")


class ExistingPrometheus(Section):
    """An existing workspace."""

    source: Literal["existing"] = Field(description="An existing workspace.")
    arn: str = Field(description="Its ARN: the created role may write to it.")
    remote_write_url: str = Field(description="URL that nodes send metrics to.")


class LogsSection(Section):
    """The cluster's log group, which HyperPod makes."""

    retention_days: int = Field(description="Days that CloudWatch keeps the nodes' logs, such as 30 or 365.")


class Notices(Section):
    """An email when the cluster fails, a node is unhealthy, another controller takes over, or no job runs for hours."""

    email: str | None = Field(
        None, description="Address of the emails; AWS asks it to confirm once. Default: topic_arn's subscribers alone."
    )
    topic_arn: str | None = Field(
        None,
        description="Existing SNS topic of this region, arn:aws:sns:REGION:ACCOUNT:NAME, whose policy lets "
        "events.amazonaws.com publish and, with idle_hours, cloudwatch.amazonaws.com. Default: a new topic.",
    )
    idle_hours: int | None = Field(
        None,
        description="Email when compute nodes were up and no Slurm job ran for so many hours, "
        f"1 to {facts.MAX_IDLE_NOTICE_HOURS}. Default: no email.",
    )
    warnings: bool = Field(
        False, description="Also email HyperPod's events of level Warn, with continuous provisioning. Default: errors."
    )


class Budget(Section):
    """An email at 80 % and 100 % of a month's budget, and when 100 % is forecast."""

    monthly_usd: int = Field(description="Monthly budget of all resources with the cluster's tag, podwright:cluster.")
    email: str = Field(description="Address of the emails.")


class SessionSection(Section):
    """A Session Manager document: a shell of ubuntu, not of root."""

    idle_minutes: int = Field(
        20,
        description=f"Minutes after which an idle session ends, {facts.MIN_IDLE_MINUTES} to {facts.MAX_IDLE_MINUTES}.",
    )
    log_retention_days: int | None = Field(
        None,
        description="Days that CloudWatch keeps recordings of sessions through the document. Default: no recordings.",
    )


class Dashboard(Section):
    """A CloudWatch dashboard of the file system and the nodes' errors."""

    source: Literal["create", "none"] = Field("none", description="create makes a dashboard.")


class LocalState(Section):
    """Terraform's state beside the settings: for one person."""

    source: Literal["local"] = Field(
        description="terraform.STACK.REGION.tfstate in the working directory; it is lost with this machine."
    )


class BackendState(Section):
    """Terraform's state in any other backend of Terraform, such as HCP Terraform, GitLab, or a bucket elsewhere."""

    source: Literal["backend"] = Field(description="Another backend of Terraform.")
    type: str = Field(description="Terraform's name of it: cloud, remote, http, gcs, azurerm, ….")
    arguments: Mapping[str, Any] = Field(
        description="Its arguments. {stack} in a text is the stack's name, and one argument must have it; {region} is "
        "the cluster's region. Credentials come from the environment."
    )

    def arguments_of(self, stack: str, region: str) -> Mapping[str, Any]:
        """Return the arguments for the state of a stack."""
        return {key: _filled(value, stack, region) for key, value in self.arguments.items()}


def _filled(value: Any, stack: str, region: str) -> Any:
    if isinstance(value, str):
        return value.replace("{stack}", stack).replace("{region}", region)
    if isinstance(value, Mapping):
        return {key: _filled(item, stack, region) for key, item in value.items()}
    return [_filled(item, stack, region) for item in value] if isinstance(value, list | tuple) else value


class S3State(Section):
    """Terraform's state in S3, locked there during deployments: for a team. Terraform 1.10 or newer."""

    source: Literal["s3"] = Field(description="An S3 bucket with versioning; `podwright state` creates it.")
    bucket: str = Field(description="Name of the bucket; not the bucket of this file.")
    region: str | None = Field(None, description="Region of the bucket. Default: the cluster's.")
    key_arn: str | None = Field(None, description="KMS key of the state. Default: the bucket's own encryption.")
