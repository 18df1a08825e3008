"""Describe every key of a settings file, from the types themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import fill
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from podwright.settings.root import Settings
from podwright.settings.section import Section, sections, source_of

_WORDS = {str: "text", int: "whole number", bool: "true | false"}


@dataclass(frozen=True)
class Key:
    """One key: ``name`` is its path, ``cluster.instance_groups[].count``; ``source`` the variant that has it."""

    name: str
    source: str
    values: str
    default: str
    description: str

    def __str__(self) -> str:
        variant = f"  (source: {self.source})" if self.source else ""
        margin = "    "
        text = fill(
            self.description, 100, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
        )  # a value such as file-system stays whole
        return f"{self.name}{variant}\n    {self.values}; {self.default}\n{text}\n"


def keys(section: type[Section] = Settings, prefix: str = "", source: str = "") -> Iterator[Key]:
    """Yield every key in the order of the types, a resource's variants one after the other."""
    for word, field in section.model_fields.items():
        name = prefix + word
        inner = sections(field.annotation)
        default, description = _default_and_description(field)
        yield Key(name, source, _values(field.annotation), default, description)
        for variant in inner:
            chosen = source_of(variant) if len(inner) > 1 else ""
            item = "[]" if get_origin(field.annotation) is tuple else ""
            yield from keys(variant, f"{name}{item}.", chosen)


def _values(annotation: Any) -> str:
    """Return the type in words: ``create | existing``, ``whole number``, ``list of text``."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"list of {_values(get_args(annotation)[0])}"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if NoneType in get_args(annotation):
        return _values(get_args(annotation)[0])
    return "mapping"


def _default_and_description(field: FieldInfo) -> tuple[str, str]:
    """Return both without a default that is in both: a description may say more about it than its value."""
    default, description = _default(field), field.description or ""
    if not default.startswith("default: "):
        return default, description
    shortened = description.removesuffix(f" D{default[1:]}.")
    return ("optional" if " Default: " in shortened else default), shortened


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, Section):
        return "default: as below"
    if isinstance(field.default, bool):
        return f"default: {str(field.default).lower()}"
    if field.default and isinstance(field.default, tuple):
        return f"default: {', '.join(map(str, field.default))}"
    if field.default_factory or field.default in (None, {}, (), ""):  # the description says what applies then
        return "optional"
    return f"default: {field.default}"
