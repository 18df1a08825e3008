"""Describe a field of a dataclass as JSON Schema: what ``conversion`` accepts in a YAML file, as editors read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from podwright_training.config.conversion import BOOLEANS, NONE_WORDS, FieldType, field_types

DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that all editors read
# Editors' YAML readers have made some texts numbers or booleans already; 1e-4 is text for some of them.
_SCALARS: dict[type, dict[str, Any]] = {
    bool: {"type": ["boolean", "integer", "string"], "minimum": 0, "maximum": 1},
    int: {"type": ["integer", "string"]},
    float: {"type": ["number", "string"]},
    str: {"type": ["string", "number", "boolean"]},
}
_PATTERNS: dict[type, str] = {
    bool: "|".join("".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in word) for word in BOOLEANS),
    int: r"\s*[+-]?([0-9]+(_[0-9]+)*|0[xX][0-9A-Fa-f]+)\s*",
    float: r"\s*[+-]?([0-9_]+\.?[0-9_]*|\.[0-9_]+)([eE][+-]?[0-9]+)?\s*",
}
_NONE = "|".join("".join(f"[{c.upper()}{c}]" for c in word) for word in NONE_WORDS)
_LIMITS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum", "below": "exclusiveMaximum"}


def described_fields(cls: type, *, null_is_default: bool = False) -> dict[str, Any]:
    """Return the schema of a mapping whose keys are the fields of a dataclass."""
    described = {item.name: described_field(cls, item, null_is_default=null_is_default) for item in fields(cls)}
    return {"type": "object", "properties": described, "additionalProperties": False}


def described_field(
    cls: type, item: Field[Any], choices: Sequence[str] = (), *, null_is_default: bool = False
) -> dict[str, Any]:
    """Return the schema of one field.

    Args:
        cls: The dataclass.
        item: Its field; the metadata are help and limits, as ``option`` makes them.
        choices: Allowed values, if the metadata have none.
        null_is_default: Whether an empty value leaves the default, rather than being None.
    """
    kind = field_types(cls)[item.name]
    if is_dataclass(kind.kind) and isinstance(kind.kind, type):
        section = described_fields(kind.kind, null_is_default=null_is_default)
        return {"description": item.metadata["text"], **section}
    choices = item.metadata["choices"] or choices
    words = (*choices, *item.metadata.get("words", ()))
    schema = _scalar(kind, choices, words) if kind.kind in _SCALARS else _collection(kind)
    if kind.is_optional or null_is_default:
        schema["type"] = [*schema["type"], "null"]
    schema |= {word: limit for name, word in _LIMITS.items() if (limit := item.metadata.get(name)) is not None}
    default = {} if item.default in (MISSING, None, "", ()) else {"default": item.default}
    examples = {"examples": list(words)} if words else {}
    return {"description": item.metadata["text"], **schema, **default, **examples}


def _scalar(kind: FieldType, choices: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    schema = {"type": ["string"]} if choices else dict(_SCALARS[kind.kind])
    if kind.kind is str and not choices:
        return schema
    patterns = [*([] if choices else [_PATTERNS[kind.kind]]), *words, *([_NONE] if kind.is_optional else [])]
    return schema | {"pattern": f"^({'|'.join(patterns)})$"}


def _collection(kind: FieldType) -> dict[str, Any]:
    if kind.kind is tuple:
        return {"type": ["string", "array"], "items": {"type": ["string", "number", "boolean"]}}
    if kind.item is str:
        return {"type": ["object"], "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
    return {"type": ["object"]}
