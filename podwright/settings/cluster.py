"""The HyperPod cluster of the settings file: instance groups, Slurm, training program."""

from typing import Annotated, Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts


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
