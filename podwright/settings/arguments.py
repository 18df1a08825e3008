"""Convert settings sections to the keyword arguments of constructs, which have the same names."""

from typing import Any

from podwright.settings.cluster import InstanceGroupSection
from podwright.settings.section import Section
from podwright_constructs.arguments.instance_group import InstanceGroup as GroupArguments
from podwright_constructs.arguments.instance_group import ScheduledUpdate


def arguments(section: Section, *without: str) -> dict[str, Any]:
    """Return a section's values as the keyword arguments of its construct."""
    return {name: getattr(section, name) for name in type(section).model_fields if name not in {"source", *without}}


def group_arguments(group: InstanceGroupSection) -> GroupArguments:
    """Return a group as the construct takes it."""
    update = group.scheduled_update
    return GroupArguments(
        **{**arguments(group), "scheduled_update": ScheduledUpdate(**arguments(update)) if update else None}
    )
