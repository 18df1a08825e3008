"""One group of equal nodes of a cluster. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["controller", "login", "compute"]
ROLES: tuple[Role, ...] = ("controller", "login", "compute")


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """Nodes of one type and one role.

    Attributes:
        name: of the instance group, unique in its cluster.
        role: what Slurm runs there.
        instance_type: as ``ml.p5.48xlarge``.
        count: number of nodes.
        partition: Slurm partition of a compute group; without it, the group's own name.
        volume_gib: size of each node's additional EBS volume, mounted at /opt/sagemaker.
        threads_per_core: 1 switches simultaneous multithreading off.
    """

    name: str
    role: Role
    instance_type: str
    count: int
    partition: str | None = None
    volume_gib: int = 500
    threads_per_core: int = 1


def in_order(groups: Sequence[InstanceGroup]) -> list[InstanceGroup]:
    """Controller, login, then compute groups by name: the same cluster whatever order the groups were written in."""
    return sorted(groups, key=lambda group: (ROLES.index(group.role), group.name))
