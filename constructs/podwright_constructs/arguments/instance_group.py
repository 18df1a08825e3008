"""Arguments of one group of equal nodes of a cluster.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from typing_extensions import Doc

from podwright_constructs import facts
from podwright_constructs.arguments import PassedAs

Role = Literal["controller", "login", "compute"]
Capacity = Literal["on-demand", "spot"]
DeepHealthCheck = Literal["instance-stress", "instance-connectivity"]
NetworkInterface = Literal["efa", "efa-only"]
AutoPatch = Literal["when-idle", "when-all-idle"]

ROLES: tuple[Role, ...] = get_args(Role)
CAPACITIES: tuple[Capacity, ...] = get_args(Capacity)
DEEP_HEALTH_CHECKS: tuple[DeepHealthCheck, ...] = get_args(DeepHealthCheck)
NETWORK_INTERFACES: tuple[NetworkInterface, ...] = get_args(NetworkInterface)
AUTO_PATCHES: tuple[AutoPatch, ...] = get_args(AutoPatch)


@dataclass(frozen=True, kw_only=True)
class ScheduledUpdate:
    """The schedule by which SageMaker installs a new image on every node of a group."""

    schedule: Annotated[
        str,
        Doc("Start in UTC: cron(MINUTE HOUR DAY MONTH WEEKDAY YEAR), such as cron(0 3 ? * SUN *)."),
        PassedAs("ScheduleExpression"),
    ]
    max_percent: Annotated[
        int | None, Doc("Percentage of the group's nodes updated at a time; AWS's page: with EKS only. Default: all.")
    ] = None
    max_count: Annotated[int | None, Doc("Number of nodes updated at a time, instead of max_percent.")] = None
    rollback_max_percent: Annotated[
        int | None, Doc("Percentage of the group's nodes rolled back at a time. Default: as they are updated.")
    ] = None
    rollback_max_count: Annotated[
        int | None, Doc("Number of nodes rolled back at a time, instead of rollback_max_percent.")
    ] = None
    wait_s: Annotated[
        int, Doc(f"Pause between two batches, at most {facts.MAX_UPDATE_WAIT_S} s. Default: 0, no pause.")
    ] = 0
    rollback_alarms: Annotated[
        Sequence[str],
        Doc("Names of CloudWatch alarms; an alarm that goes off rolls the update back. Default: no alarm."),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """Nodes of one role, and of one type unless others are named.

    AWS keeps some of its API for clusters with EKS: ``ImageReleaseVersion``, ``KubernetesConfig``, the batches of
    ``AutoPatchConfig`` and the deep health check ``MultiNodeTrainingValidation``. It sets the date of the next patch
    itself.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-deep-health-checks.html
    """

    name: Annotated[str, Doc("Name of the group, unique in the cluster."), PassedAs("InstanceGroupName")]
    role: Annotated[Role, Doc("controller runs slurmctld, users log in to login nodes, compute runs jobs.")]
    instance_type: Annotated[str, Doc("Instance type that SageMaker offers for clusters, ml.….")]
    count: Annotated[
        int,
        Doc(f"Number of nodes, at most {facts.MAX_INSTANCE_COUNT}; a compute group may have 0."),
        PassedAs("InstanceCount"),
    ]
    other_instance_types: Annotated[
        Sequence[str],
        Doc(
            "Types that SageMaker tries in this order where it has no capacity of instance_type; not with podwright's "
            "lifecycle scripts. Default: no other type."
        ),
    ] = ()
    min_count: Annotated[
        int | None,
        Doc(
            "If fewer nodes than this start within three hours, SageMaker rolls the change back. Needs "
            "node_provisioning: continuous. Default: no minimum."
        ),
        PassedAs("MinInstanceCount"),
    ] = None
    partition: Annotated[
        str | None, Doc("Slurm partition of a compute group; other roles have none. Default: the group's name.")
    ] = None
    volume_gib: Annotated[
        int,
        Doc(
            "Additional EBS volume of each node, /opt/sagemaker, "
            f"{facts.MIN_VOLUME_GIB} to {facts.MAX_VOLUME_GIB} GiB, or 0 for no such volume. Default: 500."
        ),
    ] = 500
    key_arn: Annotated[
        str | None,
        Doc("KMS key of root and additional volume, with continuous provisioning. Default: AWS's own key."),
    ] = None
    threads_per_core: Annotated[
        int,
        Doc("2 enables simultaneous multithreading, where the type has it. Default: 1."),
        PassedAs("ThreadsPerCore"),
    ] = 1
    training_plan_arn: Annotated[
        str | None,
        Doc("ARN of the training plan with your reserved capacity. Default: no plan."),
        PassedAs("TrainingPlanArn"),
    ] = None
    capacity: Annotated[
        Capacity | None,
        Doc("spot is cheaper, but AWS may reclaim it; with continuous provisioning. Default: on-demand."),
    ] = None
    deep_health_checks: Annotated[
        Sequence[DeepHealthCheck],
        Doc(
            "Checks that a new node with accelerators must pass before it takes jobs; they take hours. "
            "MultiNodeTrainingValidation needs EKS. Default: no checks."
        ),
    ] = ()
    network_interface: Annotated[
        NetworkInterface | None,
        Doc("efa-only interfaces need no addresses of the subnet. Default: efa, where the type has it."),
    ] = None
    subnet_ids: Annotated[
        Sequence[str], Doc("Subnets for this group, for capacity in another zone. Default: the cluster's.")
    ] = ()
    security_group_ids: Annotated[
        Sequence[str],
        Doc("Security groups in those subnets, in place of the cluster's and its extra ones. Default: the cluster's."),
    ] = ()
    image_id: Annotated[
        str | None, Doc("Your own AMI, built from HyperPod's. Default: HyperPod's newest."), PassedAs("ImageId")
    ] = None
    auto_patch: Annotated[
        AutoPatch | None,
        Doc("Install security patches on each node when it is idle, or on all nodes when all are. Default: never."),
    ] = None
    scheduled_update: Annotated[
        ScheduledUpdate | None, Doc("Schedule for a new image on every node. Default: never.")
    ] = None

    @property
    def instance_types(self) -> tuple[str, ...]:
        """All types that its nodes may have; the first is tried first."""
        return (self.instance_type, *self.other_instance_types)

    @property
    def partition_name(self) -> str | None:
        """The Slurm partition of its nodes; None unless they run jobs."""
        return (self.partition or self.name) if self.role == "compute" else None
