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
    """When SageMaker updates a group's image, and how many nodes at a time.

    Attributes:
        schedule: as ``cron(0 3 ? * SUN *)``, in UTC.
        max_percent: of the group's nodes at a time; without it, all at once.
        wait_s: pause between two batches.
        rollback_alarms: names of CloudWatch alarms; one that goes off brings the old image back.
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
        name: of the instance group, unique in its cluster.
        role: what Slurm runs there.
        instance_type: as ``ml.p5.48xlarge``.
        count: number of nodes.
        min_count: with fewer nodes than this after three hours, SageMaker gives the change up.
        partition: Slurm partition of a compute group; without it, the group's own name.
        volume_gib: size of each node's additional EBS volume, mounted at /opt/sagemaker.
        key_arn: KMS key of the root and the additional volume; without it, AWS's own.
        threads_per_core: 1 switches simultaneous multithreading off.
        training_plan_arn: reserved capacity.
        capacity: without it, on-demand.
        deep_health_checks: what a new node must pass before it takes jobs.
        network_interface: efa-only interfaces take no addresses of the subnet.
        subnet_ids: other subnets than the cluster's, for capacity in another zone.
        security_group_ids: in those subnets; without them, the cluster's.
        image_id: custom AMI, made of HyperPod's.
        auto_patch: which idle nodes get a new image by themselves.
        scheduled_update: when every node gets one.
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
        """The Slurm partition its nodes join; None unless they take jobs."""
        return (self.partition or self.name) if self.role == "compute" else None


def in_order(groups: Sequence[InstanceGroup]) -> list[InstanceGroup]:
    """Controller, login, then compute groups by name: the same cluster whatever order the groups were written in."""
    return sorted(groups, key=lambda group: (ROLES.index(group.role), group.name))
