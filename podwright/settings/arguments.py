"""Convert settings sections to the keyword arguments of constructs, which have the same names."""

from typing import Any, get_args

from pydantic.fields import FieldInfo

from podwright.settings.cluster import InstanceGroupSection
from podwright.settings.section import Section, UnknownValueError
from podwright_constructs.arguments.instance_group import InstanceGroup as GroupArguments
from podwright_constructs.arguments.instance_group import ScheduledUpdate

UNKNOWN_TEXT = "${unknown}"  # a Terraform reference: every check lets it pass


def arguments(section: Section, *without: str) -> dict[str, Any]:
    """Return a section's values as the keyword arguments of its construct."""
    fields = type(section).model_fields
    return {name: _argument(section, name, fields[name]) for name in fields if name not in {"source", *without}}


def _argument(section: Section, name: str, field: FieldInfo) -> Any:
    """Return the value; for a wrong text, number or list of texts, one that passes every check."""
    try:
        return getattr(section, name)
    except UnknownValueError:
        if field.annotation is str:
            return UNKNOWN_TEXT
        if field.annotation is int:
            return 1 if field.is_required() else field.default
        if get_args(field.annotation) == (str, ...):  # tuple[str, ...]
            return (UNKNOWN_TEXT,) if field.is_required() else field.default
        if field.default is None:  # The section then has its default value too.
            return None
        raise


def group_arguments(group: InstanceGroupSection) -> GroupArguments:
    """Return a group as the construct takes it."""
    update = group.scheduled_update
    return GroupArguments(
        **{**arguments(group), "scheduled_update": ScheduledUpdate(**arguments(update)) if update else None}
    )
