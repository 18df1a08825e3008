"""``cluster.yaml`` as types: what can be set, its default, and what it means.

A resource is either created by the foundation stack or brought by the user; ``source`` says which. What values are
allowed beyond their type is in ``rules.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from podwright.findings import ConfigError, has_errors
from podwright_constructs import facts

CONFIG_VARIABLE = "PODWRIGHT_CONFIG"
DEFAULT_CONFIG = Path("cluster.yaml")


class UnknownValueError(Exception):
    """A rule asked for a value that the file gives wrongly; the rule cannot be judged."""


class _Unknown:
    """Stands for a value that the file gives wrongly, so that the rest of the file can still be judged."""


UNKNOWN = _Unknown()


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # a type checker would take it as "any attribute exists"

        def __getattribute__(self, name: str) -> Any:
            """Give the value; raises ``UnknownValueError`` for one that the file gives wrongly."""
            value = super().__getattribute__(name)
            if value is UNKNOWN:
                raise UnknownValueError(name)
            return value


class CreatedNetwork(Section):
    """A VPC with one public and one private subnet, NAT gateway, S3 endpoint and the security group EFA needs."""

    source: Literal["create"] = Field(description="A new VPC.")
    availability_zone_id: str = Field(
        description="Id (not name) of the zone that has your capacity, such as usw2-az1: ask AWS or your training plan."
    )
    cidr: str = Field("10.0.0.0/16", description=f"Addresses of the VPC, {facts.VPC_PREFIX_TEXT}.")
    public_subnet_cidr: str = Field("10.0.0.0/24", description="Addresses of the NAT gateway's subnet, within cidr.")
    private_subnet_cidr: str = Field(
        "10.0.16.0/20", description="Addresses of the nodes' subnet, within cidr and apart from the public one."
    )


class ExistingNetwork(Section):
    """A VPC of yours; its security group must allow all traffic to itself, in and out, or EFA is unhealthy."""

    source: Literal["existing"] = Field(description="A VPC you have.")
    vpc_id: str = Field(description="The VPC, vpc-….")
    subnet_ids: tuple[str, ...] = Field(description="Private subnets for the nodes, subnet-…; the first holds Lustre.")
    security_group_id: str = Field(description="Security group of nodes and file system, sg-….")


class CreatedLustre(Section):
    """An FSx for Lustre file system of deployment type PERSISTENT_2 on SSD."""

    source: Literal["create"] = Field(description="A new file system.")
    capacity_gib: int = Field(1200, description=f"Storage capacity: {facts.LUSTRE_CAPACITY_TEXT}.")
    throughput_mbps_per_tib: int = Field(
        250, description=f"Throughput in MB/s for each TiB: {facts.LUSTRE_THROUGHPUT_TEXT}."
    )
    mount_path: str = Field("/fsx", description="Where every node mounts it.")


class ExistingLustre(Section):
    """An FSx for Lustre file system of yours."""

    source: Literal["existing"] = Field(description="A file system you have.")
    dns_name: str = Field(description="Its DNS name, fs-….fsx.REGION.amazonaws.com.")
    mount_name: str = Field(description="Its mount name, from `aws fsx describe-file-systems`.")
    mount_path: str = Field("/fsx", description="Where every node mounts it.")


class CreatedBucket(Section):
    """An S3 bucket for lifecycle scripts and training payload, named as HyperPod's managed policy wants it."""

    source: Literal["create"] = Field(description="A new bucket.")
    on_destroy: Literal["retain", "destroy"] = Field(
        "retain",
        description="What destroying the foundation does to the bucket: retain refuses while there are objects in it, "
        "destroy deletes them too.",
    )


class ExistingBucket(Section):
    """An S3 bucket of yours."""

    source: Literal["existing"] = Field(description="A bucket you have.")
    name: str = Field(description=f"Its name; HyperPod reads scripts only from {facts.BUCKET_NAME_PREFIX}….")


class CreatedRole(Section):
    """An IAM role for the nodes that may read the bucket and not write to it."""

    source: Literal["create"] = Field(description="A new role.")


class ExistingRole(Section):
    """An IAM role of yours, with AmazonSageMakerClusterInstanceRolePolicy and the EC2 actions a custom VPC needs."""

    source: Literal["existing"] = Field(description="A role you have.")
    arn: str = Field(description="Its ARN, arn:aws:iam::ACCOUNT:role/NAME.")


class InstanceGroup(Section):
    """Nodes of one type and one role."""

    name: str = Field(description="Name of the group, unique in the cluster.")
    role: Literal["controller", "login", "compute"] = Field(
        description="controller runs slurmctld (exactly one node), login is where people work, compute runs jobs."
    )
    instance_type: str = Field(description="An instance type that SageMaker has for clusters, ml.….")
    count: int = Field(description=f"How many nodes, at most {facts.MAX_INSTANCE_COUNT}; a compute group may have 0.")
    partition: str | None = Field(None, description="Slurm partition of a compute group; other roles have none.")
    volume_gib: int = Field(
        500,
        description="Additional EBS volume of each node, /opt/sagemaker, "
        f"{facts.MIN_VOLUME_GIB} to {facts.MAX_VOLUME_GIB} GiB.",
    )
    threads_per_core: int = Field(1, description="2 turns simultaneous multithreading on, where the type has it.")


class Cluster(Section):
    """The SageMaker HyperPod cluster."""

    instance_groups: tuple[InstanceGroup, ...] = Field(
        description=f"Groups of nodes, at most {facts.MAX_INSTANCE_GROUPS}; exactly one is the controller."
    )
    node_recovery: Literal["automatic", "none"] = Field(
        "automatic", description="automatic replaces or reboots a node with a hardware fault and resumes the job on it."
    )


class Training(Section):
    """The training program that is installed for the cluster's jobs."""

    source: Literal["bundled", "none"] = Field(
        "bundled", description="bundled installs podwright_training on the shared file system, none leaves that to you."
    )


class Settings(Section):
    """One cluster and everything it needs."""

    name: str = Field(description="Name of the cluster, and the beginning of every other name.")
    region: str = Field(description="AWS region, such as us-west-2.")
    tags: Mapping[str, str] = Field({}, description="Tags on everything that is created.")
    network: Annotated[CreatedNetwork | ExistingNetwork, Field(discriminator="source")] = Field(
        description="VPC, subnets and security group."
    )
    lustre: Annotated[CreatedLustre | ExistingLustre, Field(discriminator="source")] = Field(
        description="The shared file system."
    )
    bucket: Annotated[CreatedBucket | ExistingBucket, Field(discriminator="source")] = Field(
        description="Where the nodes get their scripts from."
    )
    role: Annotated[CreatedRole | ExistingRole, Field(discriminator="source")] = Field(
        description="What the nodes may do in the account."
    )
    cluster: Cluster = Field(description="The nodes.")
    training: Training = Field(Training(source="bundled"), description="What jobs run.")


def config_path() -> Path:
    """The settings file of this run: what PODWRIGHT_CONFIG names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        ConfigError: the file has errors; all of them are in it.
        UnreadableFileError: the file cannot be read at all.
    """
    from podwright.check import check  # noqa: PLC0415 — check knows the rules, and the rules know the types above

    report = check(path)
    if report.settings is None or has_errors(report.findings):
        raise ConfigError(file=path, text=report.document.text, findings=report.findings)
    return report.settings


def sections(annotation: Any) -> tuple[type[Section], ...]:
    """The section classes in a field's type: one, the variants of a union, or none for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(section for part in get_args(annotation) for section in sections(part))


def source_of(section: type[Section]) -> str:
    """The ``source`` that chooses this variant of a resource."""
    return str(get_args(section.model_fields["source"].annotation)[0])
