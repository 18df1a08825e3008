"""``cluster.yaml`` as types: what can be set, its default, and what it means.

A resource is either created by the foundation stack or brought by the user; ``source`` says which. What values are
allowed beyond their type is in ``rules/``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from podwright.findings import ConfigError, has_errors
from podwright.section import UNKNOWN, Section, UnknownValueError
from podwright.settings_nodes import Nodes
from podwright.settings_operations import (
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
from podwright_constructs import facts

CONFIG_VARIABLE = "PODWRIGHT_CONFIG"
DEFAULT_CONFIG = Path("cluster.yaml")

__all__ = ["UNKNOWN", "Section", "Settings", "UnknownValueError", "config_path", "load", "sections", "source_of"]


_LUSTRE_THROUGHPUTS = "; ".join(
    f"{deployment} {storage} {', '.join(map(str, choices))}"
    for (deployment, storage), choices in facts.LUSTRE_THROUGHPUTS.items()
)
_OPENZFS_THROUGHPUTS = "; ".join(
    f"{deployment} {', '.join(map(str, choices))}" for deployment, choices in facts.OPENZFS_THROUGHPUTS_MBPS.items()
)
_OPENZFS_THROUGHPUTS += ". The first is the default"


class PrivateSubnet(Section):
    """A further private subnet of the created VPC."""

    availability_zone_id: str = Field(description="Id of its zone, such as usw2-az2.")
    cidr: str = Field(description="Its addresses, within cidr or secondary_cidrs and apart from every other subnet.")


class CreatedNetwork(Section):
    """A VPC with private subnets, NAT gateway, S3 endpoint and the security group EFA needs."""

    source: Literal["create"] = Field(description="A new VPC.")
    availability_zone_id: str = Field(
        description="Id (not name) of the zone that has your capacity, such as usw2-az1: ask AWS or your training plan."
    )
    cidr: str = Field("10.0.0.0/16", description=f"Addresses of the VPC, {facts.VPC_PREFIX_TEXT}.")
    public_subnet_cidr: str = Field("10.0.0.0/24", description="Addresses of the NAT gateway's subnet, within cidr.")
    private_subnet_cidr: str = Field(
        "10.0.16.0/20",
        description="Addresses of the nodes' subnet, within cidr or secondary_cidrs and apart from the public one.",
    )
    secondary_cidrs: tuple[str, ...] = Field(
        (), description="Further addresses of the VPC, for more nodes than cidr holds, such as 100.64.0.0/16."
    )
    extra_private_subnets: tuple[PrivateSubnet, ...] = Field(
        (), description="Further private subnets, in this zone or others; MULTI_AZ_1 of OpenZFS needs a second zone."
    )
    internet: Literal["nat", "none"] = Field(
        "nat",
        description="How nodes reach the internet: through a NAT gateway, or not at all. Without it they reach AWS "
        "through endpoints alone, and packages have to come from a mirror of yours.",
    )
    endpoints: tuple[str, ...] = Field(
        (),
        description="AWS's APIs at private addresses, each paid by the hour: standard for all that nodes ask "
        f"({', '.join(facts.STANDARD_ENDPOINTS)}), or services by name.",
    )
    flow_logs: Literal["cloudwatch", "bucket", "none"] = Field(
        "cloudwatch",
        description="Where AWS writes down who talked to whom: a log group of CloudWatch, the cluster's bucket below "
        "AWSLogs/, or nowhere.",
    )


class CreatedSubnet(Section):
    """A new private subnet and security group in a VPC of yours; its endpoints and flow logs stay as they are."""

    source: Literal["existing_vpc"] = Field(description="A new private subnet in a VPC you have.")
    vpc_id: str = Field(description="The VPC, vpc-….")
    availability_zone_id: str = Field(description="Id of the zone that has your capacity, such as usw2-az1.")
    private_subnet_cidr: str = Field(description="Addresses of the new subnet, free in the VPC.")
    nat_gateway_id: str | None = Field(
        None, description="NAT gateway of yours, nat-…: the subnet gets a route table with a route to it, and S3's."
    )
    route_table_id: str | None = Field(
        None, description="In place of nat_gateway_id a route table of yours, rtb-…, that leads to S3 and to packages."
    )


class ExistingNetwork(Section):
    """A VPC of yours; its security group must allow all traffic to itself, in and out, or EFA is unhealthy."""

    source: Literal["existing"] = Field(description="A VPC you have.")
    vpc_id: str = Field(description="The VPC, vpc-….")
    subnet_ids: tuple[str, ...] = Field(description="Private subnets, subnet-…; nodes and Lustre are in the first.")
    security_group_id: str = Field(description="Security group of nodes and file system, sg-….")
    route_table_ids: tuple[str, ...] = Field(
        (), description="What the subnets follow, rtb-…: for a created OpenZFS of two zones, which adds routes there."
    )


class CreatedKey(Section):
    """A KMS key for everything that keeps data, which KMS rotates every year."""

    source: Literal["create"] = Field(description="A new key.")


class ExistingKey(Section):
    """A KMS key of yours; its policy must admit CloudWatch Logs, EventBridge and, through IAM, the nodes' role."""

    source: Literal["existing"] = Field(description="A key you have.")
    arn: str = Field(description="Its ARN, arn:aws:kms:REGION:ACCOUNT:key/ID.")


class NoKey(Section):
    """Each service encrypts with a key of its own."""

    source: Literal["none"] = Field(description="No key of yours: S3 and FSx encrypt with keys of their own.")


class DataRepository(Section):
    """A prefix of an S3 bucket that a folder of the Lustre file system shows."""

    path: str = Field(description="The folder below the file system's root, such as /data; no folder in another's.")
    s3_uri: str = Field(description="s3://BUCKET or s3://BUCKET/PREFIX, in this region.")
    import_changes: bool = Field(
        default=True, description="Whether the folder shows what is new, changed or deleted in S3."
    )
    export_changes: bool = Field(
        default=False, description="Whether what is new, changed or deleted in the folder is so in S3."
    )


_BACKUP_RETENTION = f"Days that automatic daily backups stay, 0 (none) to {facts.MAX_BACKUP_RETENTION_DAYS}."
_LAST_BACKUP = "What destroying the foundation does first: backup makes a last backup, which stays; destroy none."


class CreatedLustre(Section):
    """An FSx for Lustre file system."""

    source: Literal["create"] = Field(description="A new file system.")
    deployment_type: Literal["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"] = Field(
        "PERSISTENT_2", description="PERSISTENT_1 where a region has no 2; SCRATCH_2 for what may be lost."
    )
    storage_type: Literal["SSD", "HDD", "INTELLIGENT_TIERING"] = Field(
        "SSD", description="HDD goes with PERSISTENT_1, INTELLIGENT_TIERING with PERSISTENT_2."
    )
    capacity_gib: int | None = Field(
        None,
        description=f"Storage capacity; of SSD {facts.MIN_LUSTRE_CAPACITY_GIB} or a multiple of "
        f"{facts.LUSTRE_CAPACITY_STEP_GIB}. Default: the smallest one. INTELLIGENT_TIERING has none.",
    )
    throughput_mbps_per_tib: int | None = Field(
        None, description=f"Throughput in MB/s for each TiB: {_LUSTRE_THROUGHPUTS}. The first is the default."
    )
    throughput_mbps: int | None = Field(
        None,
        description="Throughput of INTELLIGENT_TIERING in MB/s, a multiple of "
        f"{facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS}, which is the default.",
    )
    read_cache: bool = Field(default=False, description="Whether an SSD is before HDD or INTELLIGENT_TIERING.")
    compression: Literal["LZ4", "NONE"] = Field("LZ4", description="How FSx compresses what is written.")
    version: Literal["2.15", "2.12", "2.10"] = Field("2.15", description="Lustre's version.")
    metadata_iops: int | None = Field(
        None,
        description="Operations on names per second, of PERSISTENT_2: 1500, 3000, 6000 or a multiple of 12000. "
        "Default: what FSx finds right for the capacity.",
    )
    efa: bool = Field(
        default=False, description="Whether nodes reach it over EFA; needs PERSISTENT_2 and larger capacities."
    )
    automatic_backup_retention_days: int = Field(0, description=_BACKUP_RETENTION)
    on_destroy: Literal["backup", "destroy"] = Field("destroy", description=_LAST_BACKUP)
    data_repositories: tuple[DataRepository, ...] = Field(
        (), description=f"Prefixes of S3 that folders show, at most {facts.MAX_DATA_REPOSITORIES}."
    )
    mount_path: str = Field("/fsx", description="Where every node mounts it.")


class ExistingLustre(Section):
    """An FSx for Lustre file system of yours."""

    source: Literal["existing"] = Field(description="A file system you have.")
    dns_name: str = Field(description="Its DNS name, fs-….fsx.REGION.amazonaws.com.")
    mount_name: str = Field(description="Its mount name, from `aws fsx describe-file-systems`.")
    efa: bool = Field(default=False, description="Whether it was made with EFA; nodes that can then reach it over EFA.")
    mount_path: str = Field("/fsx", description="Where every node mounts it.")


class CreatedOpenZfs(Section):
    """An FSx for OpenZFS file system, for people's homes."""

    source: Literal["create"] = Field(description="A new file system.")
    deployment_type: Literal["SINGLE_AZ_1", "SINGLE_AZ_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_HA_2", "MULTI_AZ_1"] = Field(
        "SINGLE_AZ_HA_2",
        description="HA has a second server in the same zone, MULTI_AZ_1 in the network's second private subnet.",
    )
    capacity_gib: int = Field(64, description=f"Storage capacity, {facts.OPENZFS_CAPACITY_TEXT}.")
    throughput_mbps: int | None = Field(None, description=f"Throughput in MB/s: {_OPENZFS_THROUGHPUTS}.")
    compression: Literal["ZSTD", "LZ4", "NONE"] = Field("ZSTD", description="How FSx compresses what is written.")
    automatic_backup_retention_days: int = Field(0, description=_BACKUP_RETENTION)
    on_destroy: Literal["backup", "destroy"] = Field("destroy", description=_LAST_BACKUP)
    mount_path: str = Field("/home", description="Where every node mounts it.")


class ExistingOpenZfs(Section):
    """An FSx for OpenZFS file system of yours; nodes mount its root volume, /fsx."""

    source: Literal["existing"] = Field(description="A file system you have.")
    dns_name: str = Field(description="Its DNS name, fs-….fsx.REGION.amazonaws.com.")
    mount_path: str = Field("/home", description="Where every node mounts it.")


class NoOpenZfs(Section):
    """Homes are on each node's own disk."""

    source: Literal["none"] = Field(description="No OpenZFS file system: homes are on each node's own disk.")


class CreatedBucket(Section):
    """An S3 bucket for lifecycle scripts and training payload, named as HyperPod's managed policy wants it."""

    source: Literal["create"] = Field(description="A new bucket.")
    on_destroy: Literal["retain", "destroy"] = Field(
        "retain",
        description="What destroying the foundation does to the bucket: retain refuses while there are objects in it, "
        "destroy deletes them too.",
    )
    noncurrent_version_expiration_days: int = Field(
        90, description="Days that what was overwritten or deleted can be had back."
    )
    access_log_bucket: str | None = Field(
        None, description="A bucket of yours, in this region, that receives a line for each request."
    )
    access_log_prefix: str | None = Field(
        None, description="Where in access_log_bucket; default: the beginning of the bucket's name."
    )


class ExistingBucket(Section):
    """An S3 bucket of yours."""

    source: Literal["existing"] = Field(description="A bucket you have.")
    name: str = Field(description=f"Its name; HyperPod reads scripts only from {facts.BUCKET_NAME_PREFIX}….")
    key_arn: str | None = Field(
        None, description="ARN of the KMS key that it is encrypted with, which a created role may then use."
    )


class CreatedRole(Section):
    """An IAM role for the nodes that reads this cluster's scripts and cannot change them."""

    source: Literal["create"] = Field(description="A new role.")
    permissions_boundary_arn: str | None = Field(
        None, description="ARN of a policy that limits the role, where your organisation asks for one."
    )


class ExistingRole(Section):
    """An IAM role of yours, with AmazonSageMakerClusterInstanceRolePolicy and the EC2 actions a custom VPC needs."""

    source: Literal["existing"] = Field(description="A role you have.")
    arn: str = Field(description="Its ARN, arn:aws:iam::ACCOUNT:role/NAME.")


class ScheduledUpdate(Section):
    """When SageMaker brings a new image to every node of a group."""

    schedule: str = Field(description="When, in UTC: cron(MINUTE HOUR DAY MONTH WEEKDAY YEAR), as cron(0 3 ? * SUN *).")
    max_percent: int | None = Field(None, description="How many of the group's nodes at a time; without it, all.")
    wait_s: int = Field(0, description=f"Pause between two batches, at most {facts.MAX_UPDATE_WAIT_S} s.")
    rollback_alarms: tuple[str, ...] = Field(
        (), description="Names of CloudWatch alarms; one that goes off brings the old image back."
    )


class InstanceGroup(Section):
    """Nodes of one type and one role."""

    name: str = Field(description="Name of the group, unique in the cluster.")
    role: Literal["controller", "login", "compute"] = Field(
        description="controller runs slurmctld, login is where people work,  compute runs jobs."
    )
    instance_type: str = Field(description="An instance type that SageMaker has for clusters, ml.….")
    count: int = Field(description=f"How many nodes, at most {facts.MAX_INSTANCE_COUNT}; a compute group may have 0.")
    min_count: int | None = Field(
        None, description="With fewer nodes than this after three hours, SageMaker gives the change up and goes back."
    )
    partition: str | None = Field(None, description="Slurm partition of a compute group; other roles have none.")
    volume_gib: int = Field(
        500,
        description="Additional EBS volume of each node, /opt/sagemaker, "
        f"{facts.MIN_VOLUME_GIB} to {facts.MAX_VOLUME_GIB} GiB.",
    )
    key_arn: str | None = Field(
        None,
        description="KMS key of root and additional volume, with continuous provisioning; none is AWS's own.",
    )
    threads_per_core: int = Field(1, description="2 turns simultaneous multithreading on, where the type has it.")
    training_plan_arn: str | None = Field(None, description="Capacity you reserved: the plan's ARN.")
    capacity: Literal["on-demand", "spot"] | None = Field(
        None, description="spot is cheaper and may be taken away; without it, on-demand."
    )
    deep_health_checks: tuple[Literal["instance-stress", "instance-connectivity"], ...] = Field(
        (), description="What a new node with accelerators must pass before it takes jobs; hours, not minutes."
    )
    network_interface: Literal["efa", "efa-only"] | None = Field(
        None, description="efa-only interfaces take no addresses of the subnet."
    )
    subnet_ids: tuple[str, ...] = Field(
        (), description="Other subnets than the cluster's for this group, for capacity in another zone."
    )
    security_group_ids: tuple[str, ...] = Field(
        (), description="Security groups in those subnets; without them, the cluster's."
    )
    image_id: str | None = Field(None, description="AMI of yours, made of HyperPod's; none is HyperPod's newest.")
    auto_patch: Literal["when-idle", "when-all-idle"] | None = Field(
        None, description="Security patches without being asked: each node when it is idle, or all when all are."
    )
    scheduled_update: ScheduledUpdate | None = Field(None, description="A new image for every node, by the clock.")


class LifecycleSlurm(Section):
    """Slurm set up by podwright's lifecycle scripts."""

    source: Literal["lifecycle"] = Field(description="Lifecycle scripts, which install the training program too.")


class InitScript(Section):
    """A script of yours in S3 that every node runs at the end."""

    source_s3_uri: str = Field(description=f"Its folder, s3://{facts.BUCKET_NAME_PREFIX}….")
    on_init_complete: str = Field(description="Its name in that folder.")


class ApiSlurm(Section):
    """Slurm set up by HyperPod itself; without podwright's scripts, so without the training program."""

    source: Literal["api"] = Field(description="HyperPod writes slurm.conf and mounts the file system.")
    strategy: Literal["managed", "overwrite", "merge"] | None = Field(
        None,
        description="Partitions edited on the controller: managed stops an update, overwrite loses them, merge keeps "
        "them. Required, but not with continuous provisioning.",
    )
    init_script: InitScript | None = Field(None, description="What every node runs when HyperPod is done.")


class Cluster(Section):
    """The SageMaker HyperPod cluster."""

    instance_groups: tuple[InstanceGroup, ...] = Field(
        description=f"Groups of nodes, at most {facts.MAX_INSTANCE_GROUPS}; exactly one is the controller."
    )
    slurm: Annotated[LifecycleSlurm | ApiSlurm, Field(discriminator="source")] = Field(
        LifecycleSlurm(source="lifecycle"), description="Who sets Slurm up."
    )
    node_recovery: Literal["automatic", "none"] = Field(
        "automatic", description="automatic replaces or reboots a node with a hardware fault and resumes the job on it."
    )
    node_provisioning: Literal["continuous"] | None = Field(
        None, description="continuous starts with the nodes there are and goes on trying; without it, all or nothing."
    )
    tiered_storage_percent: int | None = Field(
        None, description="Share of the nodes' memory for checkpoints that survive a node; none is off."
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
