"""One group of equal nodes of a cluster. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["controller", "login", "compute"]
Capacity = Literal["on-demand", "spot"]
DeepHealthCheck = Literal["instance-stress", "instance-connectivity"]
NetworkInterface = Literal["efa", "efa-only"]
AutoPatch = Literal["when-idle", "when-all-idle"]

ROLES: tuple[Role, ...] = ("controller", "login", "compute")
CAPACITIES: tuple[Capacity, ...] = ("on-demand", "spot")
DEEP_HEALTH_CHECKS: tuple[DeepHealthCheck, ...] = ("instance-stress", "instance-connectivity")
NETWORK_INTERFACES: tuple[NetworkInterface, ...] = ("efa", "efa-only")
AUTO_PATCHES: tuple[AutoPatch, ...] = ("when-idle", "when-all-idle")


@dataclass(frozen=True, kw_only=True)
class ScheduledUpdate:
    """The schedule by which SageMaker updates the image of a group's nodes.

    Attributes:
        schedule: Cron expression in UTC, such as ``cron(0 3 ? * SUN *)``.
        max_percent: Share of the group's nodes that are updated at a time. Default: all at once.
        wait_s: Pause between two batches. Default: 0.
        rollback_alarms: Names of CloudWatch alarms that roll the update back. Default: no alarms.
    """

    schedule: str
    max_percent: int | None = None
    wait_s: int = 0
    rollback_alarms: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """Nodes of one type and one role.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html

    Attributes:
        name: Name of the group, unique in its cluster.
        role: controller runs slurmctld, login is for users, compute runs jobs.
        instance_type: Instance type, such as ``ml.p5.48xlarge``.
        count: Number of nodes.
        min_count: SageMaker rolls a change back that has fewer nodes than this after three hours.
        partition: Slurm partition of a compute group. Default: the group's name.
        volume_gib: Size of each node's additional EBS volume, mounted at /opt/sagemaker.
        key_arn: KMS key of the root and the additional volume. Default: a key of AWS.
        threads_per_core: 1 switches simultaneous multithreading off.
        training_plan_arn: ARN of the training plan with reserved capacity.
        capacity: spot is cheaper and can be interrupted. Default: on-demand.
        deep_health_checks: Checks that a new node must pass before it takes jobs.
        network_interface: efa-only interfaces take no addresses of the subnet.
        subnet_ids: Other subnets than the cluster's, for capacity in another zone.
        security_group_ids: Security groups in those subnets. Default: the cluster's.
        image_id: Custom AMI based on HyperPod's. Default: HyperPod's newest.
        auto_patch: Patch each node when it is idle, or all nodes when all are idle.
        scheduled_update: Schedule for a new image on every node.
    """

    name: str
    role: Role
    instance_type: str
    count: int
    min_count: int | None = None
    partition: str | None = None
    volume_gib: int = 500
    key_arn: str | None = None
    threads_per_core: int = 1
    training_plan_arn: str | None = None
    capacity: Capacity | None = None
    deep_health_checks: Sequence[DeepHealthCheck] = ()
    network_interface: NetworkInterface | None = None
    subnet_ids: Sequence[str] = ()
    security_group_ids: Sequence[str] = ()
    image_id: str | None = None
    auto_patch: AutoPatch | None = None
    scheduled_update: ScheduledUpdate | None = None

    @property
    def partition_name(self) -> str | None:
        """The Slurm partition of its nodes; None unless they run jobs."""
        return (self.partition or self.name) if self.role == "compute" else None


def in_order(groups: Sequence[InstanceGroup]) -> list[InstanceGroup]:
    """Sort groups: controller, login, then compute by name, so that their order in the file does not matter."""
    return sorted(groups, key=lambda group: (ROLES.index(group.role), group.name))
