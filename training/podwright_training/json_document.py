"""The JSON documents of commands: each is a dataclass, which its command prints and ``schema COMMAND`` describes.

A document may get more keys; those here stay. A field whose default is ``None`` is absent while it is ``None``, and the
fields of a dataclass in a field with the metadata ``SPREAD`` are keys themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from inspect import getdoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from podwright_training.json_values import SPREAD

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    Any: {},
}


def to_values(value: Any) -> Any:
    """Return a document, or a value in one, as objects, lists and scalars of JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_keys(value))
    if isinstance(value, Mapping):
        return {key: to_values(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [to_values(member) for member in value]
    return str(value) if isinstance(value, Path) else value


def _keys(document: Any) -> Iterator[tuple[str, Any]]:
    for item in fields(document):
        value = getattr(document, item.name)
        if value is None and item.default is None:
            continue
        if item.metadata == SPREAD:
            yield from _keys(value)
        else:
            yield item.name, to_values(value)


def document_schema(*documents: type) -> dict[str, Any]:
    """Return the JSON Schema of a document, or of one of several."""
    schemas = [_schema(document) for document in documents]
    return {"$schema": DIALECT, **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})}


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of a type."""
    if is_dataclass(kind):
        return {"type": "object", "description": getdoc(kind), **_schema_of_keys(kind)}
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, members = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return {"anyOf": [_schema(member) for member in members]}
    if origin is list:
        return {"type": "array", "items": _schema(members[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(members[1])}
    if origin is Counter:
        return {"type": "object", "additionalProperties": _schema(int)}
    raise TypeError(f"no JSON Schema of {kind}")


def _schema_of_keys(kind: Any) -> dict[str, Any]:
    """Return properties and required keys of a dataclass."""
    hints = get_type_hints(kind)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for item in fields(kind):
        hint, is_optional = hints[item.name], item.default is None
        if is_optional:
            (hint,) = (member for member in get_args(hint) if member is not NoneType)
        keys = _schema_of_keys(hint) if item.metadata == SPREAD else {"properties": {item.name: _schema(hint)}}
        properties |= keys["properties"]
        if not is_optional:
            required += keys.get("required", [item.name])
    return {"properties": properties, "required": required}
