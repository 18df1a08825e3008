"""The HyperPod cluster of the settings file: instance groups, Slurm, training program."""

from typing import Annotated, Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts


class ScheduledUpdate(Section):
    """The time at which SageMaker installs a new image on every node of a group."""

    schedule: str = Field(
        description="Start in UTC: cron(MINUTE HOUR DAY MONTH WEEKDAY YEAR), such as cron(0 3 ? * SUN *)."
    )
    max_percent: int | None = Field(
        None, description="Percentage of the group's nodes updated at a time. Default: all."
    )
    wait_s: int = Field(0, description=f"Pause between two batches, at most {facts.MAX_UPDATE_WAIT_S} s.")
    rollback_alarms: tuple[str, ...] = Field(
        (), description="Names of CloudWatch alarms; an alarm that goes off rolls the update back."
    )


class InstanceGroup(Section):
    """Nodes of one type and one role."""

    name: str = Field(description="Name of the group, unique in the cluster.")
    role: Literal["controller", "login", "compute"] = Field(
        description="controller runs slurmctld, users log in to login nodes, compute runs jobs."
    )
    instance_type: str = Field(description="Instance type that SageMaker offers for clusters, ml.….")
    count: int = Field(description=f"Number of nodes, at most {facts.MAX_INSTANCE_COUNT}; a compute group may have 0.")
    min_count: int | None = Field(
        None,
        description="If fewer nodes than this start within three hours, SageMaker rolls the change back. "
        "Default: no minimum.",
    )
    partition: str | None = Field(
        None, description="Slurm partition of a compute group; required there, and not allowed for other roles."
    )
    volume_gib: int = Field(
        500,
        description="Additional EBS volume of each node, /opt/sagemaker, "
        f"{facts.MIN_VOLUME_GIB} to {facts.MAX_VOLUME_GIB} GiB.",
    )
    key_arn: str | None = Field(
        None,
        description="KMS key of root and additional volume, with continuous provisioning. Default: AWS's own key.",
    )
    threads_per_core: int = Field(1, description="2 enables simultaneous multithreading, where the type has it.")
    training_plan_arn: str | None = Field(
        None, description="ARN of the training plan with your reserved capacity. Default: no plan."
    )
    capacity: Literal["on-demand", "spot"] | None = Field(
        None,
        description="spot is cheaper, but AWS may reclaim it; with continuous provisioning. Default: on-demand.",
    )
    deep_health_checks: tuple[Literal["instance-stress", "instance-connectivity"], ...] = Field(
        (), description="Checks that a new node with accelerators must pass before it takes jobs; they take hours."
    )
    network_interface: Literal["efa", "efa-only"] | None = Field(
        None,
        description="efa-only interfaces need no addresses of the subnet. Default: efa, where the type has it.",
    )
    subnet_ids: tuple[str, ...] = Field(
        (), description="Subnets for this group, for capacity in another zone. Default: the cluster's."
    )
    security_group_ids: tuple[str, ...] = Field(
        (), description="Security groups in those subnets. Default: the cluster's."
    )
    image_id: str | None = Field(None, description="Your own AMI, built from HyperPod's. Default: HyperPod's newest.")
    auto_patch: Literal["when-idle", "when-all-idle"] | None = Field(
        None,
        description="Install security patches on each node when it is idle, or on all nodes when all are. "
        "Default: never.",
    )
    scheduled_update: ScheduledUpdate | None = Field(
        None, description="Schedule for a new image on every node. Default: never."
    )


class LifecycleSlurm(Section):
    """Slurm set up by podwright's lifecycle scripts."""

    source: Literal["lifecycle"] = Field(description="Lifecycle scripts, which also install the training program.")


class InitScript(Section):
    """A script of your own in S3 that every node runs last."""

    source_s3_uri: str = Field(description=f"Folder of the script, s3://{facts.BUCKET_NAME_PREFIX}….")
    on_init_complete: str = Field(description="Name of the script in that folder.")


class ApiSlurm(Section):
    """Slurm set up by HyperPod itself; without podwright's scripts, so without the training program."""

    source: Literal["api"] = Field(description="HyperPod itself writes slurm.conf and mounts the file system.")
    strategy: Literal["managed", "overwrite", "merge"] | None = Field(
        None,
        description="What an update does to partitions edited on the controller: managed refuses, overwrite drops "
        "them, merge keeps them. Required, except with continuous provisioning.",
    )
    init_script: InitScript | None = Field(
        None, description="Script that every node runs after HyperPod has set Slurm up. Default: no script."
    )


class Cluster(Section):
    """The SageMaker HyperPod cluster."""

    instance_groups: tuple[InstanceGroup, ...] = Field(
        description=f"Groups of nodes, at most {facts.MAX_INSTANCE_GROUPS}; exactly one is the controller."
    )
    slurm: Annotated[LifecycleSlurm | ApiSlurm, Field(discriminator="source")] = Field(
        LifecycleSlurm(source="lifecycle"), description="How Slurm is set up."
    )
    node_recovery: Literal["automatic", "none"] = Field(
        "automatic", description="automatic replaces or reboots a node with a hardware fault and resumes the job on it."
    )
    node_provisioning: Literal["continuous"] | None = Field(
        None,
        description="continuous starts with the nodes available and keeps trying. Default: all nodes or none.",
    )


class Training(Section):
    """The training program that is installed for the cluster's jobs."""

    source: Literal["bundled", "none"] = Field(
        "bundled", description="bundled installs podwright_training on the shared file system; none installs nothing."
    )
