"""The HyperPod cluster of the settings file: instance groups, Slurm, training program."""

from typing import Annotated, Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts
from podwright_constructs.arguments import instance_group


class ScheduledUpdate(Section, instance_group.ScheduledUpdate):
    """The time at which SageMaker installs a new image on every node of a group."""


class InstanceGroupSection(Section, instance_group.InstanceGroup):
    """Nodes of one type and one role."""

    partition: str | None = Field(
        None, description="Slurm partition of a compute group; required there, and not allowed for other roles."
    )
    scheduled_update: ScheduledUpdate | None = None


class LifecycleSlurm(Section):
    """Slurm set up by podwright's lifecycle scripts."""

    source: Literal["lifecycle"] = Field(description="Lifecycle scripts, which also install the training program.")


class ExistingScripts(Section):
    """Slurm set up by lifecycle scripts of your own, which stay as they are; without podwright's training program."""

    source: Literal["existing"] = Field(description="Existing lifecycle scripts of yours in S3.")
    source_s3_uri: str = Field(description=f"Folder of the scripts, s3://{facts.BUCKET_NAME_PREFIX}….")
    on_create: str = Field("on_create.sh", description="Name of the script in that folder that nodes run as root.")


class InitScript(Section):
    """A script of your own in S3 that every node runs last, in place of podwright's scripts."""

    source_s3_uri: str = Field(description=f"Folder of the script, s3://{facts.BUCKET_NAME_PREFIX}….")
    on_init_complete: str = Field(description="Name of the script in that folder.")


class ApiSlurm(Section):
    """Slurm set up by HyperPod itself; podwright's scripts run afterwards, if `nodes` or `training` needs them."""

    source: Literal["api"] = Field(description="HyperPod itself writes slurm.conf and mounts the file system.")
    strategy: Literal["managed", "overwrite", "merge"] | None = Field(
        None,
        description="Effect of an update on partitions edited on the controller: managed refuses, overwrite drops "
        "them, merge keeps them. Required, except with continuous provisioning.",
    )
    init_script: InitScript | None = Field(
        None,
        description="Script of your own that every node runs after HyperPod has set Slurm up; without `nodes` and "
        "the training program. Default: podwright's scripts, if `nodes` or `training` needs them.",
    )


class ClusterSection(Section):
    """The SageMaker HyperPod cluster."""

    instance_groups: tuple[InstanceGroupSection, ...] = Field(
        description=f"Groups of nodes, at most {facts.MAX_INSTANCE_GROUPS}; exactly one is the controller."
    )
    slurm: Annotated[LifecycleSlurm | ExistingScripts | ApiSlurm, Field(discriminator="source")] = Field(
        LifecycleSlurm(source="lifecycle"), description="How Slurm is set up."
    )
    extra_security_group_ids: tuple[str, ...] = Field(
        (),
        description="Existing security groups that nodes have beside the network's, sg-…, such as for a license "
        f"server; {facts.MAX_SECURITY_GROUPS - 1} at most. A group with security_group_ids has those "
        "alone. AWS does not change them later. Default: none.",
    )
    node_recovery: Literal["automatic", "none"] = Field(
        "automatic", description="automatic replaces or reboots a node with a hardware fault and resumes the job on it."
    )
    node_provisioning: Literal["continuous"] | None = Field(
        None,
        description="continuous starts with the nodes available and keeps trying for the rest; AWS does not "
        "change it later. Default: fail unless all nodes start.",
    )
    own_tags: bool = Field(
        True,
        description="Tag the cluster with its name and construct path, by which `podwright adopt` finds it. "
        "false keeps an imported cluster's tags as they are.",
    )


class Training(Section):
    """The training program that is installed for the cluster's jobs."""

    source: Literal["bundled", "none"] = Field(
        "bundled", description="bundled installs podwright_training on the shared file system; none installs nothing."
    )
    requirements: str = Field(
        "",
        description="File of packages that are installed with it, such as wandb: NAME==VERSION lines with hashes, as "
        "`uv pip compile --generate-hashes` writes them.",
    )
