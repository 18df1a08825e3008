"""Build settings from a file with wrong or missing values, so that rules still check the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from podwright.check.findings import KeyPath
from podwright.settings.section import UNKNOWN, Section, sections, source_of

S = TypeVar("S", bound=Section)


def incomplete(section: type[S], data: Mapping[str, Any]) -> S:
    """Return the section that ``data`` describes; a wrong or missing value is UNKNOWN."""
    fields = section.model_fields.items()
    values: dict[str, Any] = {name: UNKNOWN for name, field in fields if field.is_required()}
    values |= {name: _value(field, data[name]) for name, field in fields if name in data}
    return cast("S", section.model_construct(**values))


def is_unknown(section: Section, path: KeyPath) -> bool:
    """Return whether the value at a path, or a section above it, is wrong or missing in the file."""
    value: Any = section
    for key in path:
        if isinstance(value, Section):
            value = value.__dict__.get(str(key))
        elif isinstance(value, tuple) and isinstance(key, int):
            value = value[key]
        else:
            return False
        if value is UNKNOWN:
            return True
    return False


def _value(field: FieldInfo, value: Any) -> Any:
    options = sections(field.annotation)
    if len(options) > 1 and isinstance(value, dict):
        options = tuple(option for option in options if source_of(option) == value.get("source"))
    listed = get_origin(field.annotation) is tuple
    if options and not listed and isinstance(value, dict):
        return incomplete(options[0], value)
    if options and listed and isinstance(value, list):
        return tuple(incomplete(options[0], item if isinstance(item, dict) else {}) for item in value)
    annotation: Any = field.annotation
    try:
        return TypeAdapter[Any](annotation).validate_python(value)
    except ValidationError:
        return UNKNOWN
