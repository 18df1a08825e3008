"""The order of a cluster's instance groups."""

from __future__ import annotations

from collections.abc import Sequence

from podwright_constructs.arguments.instance_group import ROLES, InstanceGroup, ScheduledUpdate

__all__ = ["InstanceGroup", "ScheduledUpdate", "in_order"]


def in_order(groups: Sequence[InstanceGroup]) -> list[InstanceGroup]:
    """Sort groups: controller, login, then compute by name, so that their order in the file does not matter."""
    return sorted(groups, key=lambda group: (ROLES.index(group.role), group.name))
