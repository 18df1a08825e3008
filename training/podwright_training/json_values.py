"""Compare values of a JSON file, which anybody may have changed, with the types that its readers rely on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from podwright_training.errors import shortened

SPREAD = {"spread": True}  # Metadata of a field: the keys of its object are keys of the object that has the field.
_TYPES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    type(None): (type(None),),
}
_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
    list: "a list",
    tuple: "a list",
}


def loads(content: str | bytes) -> Any:
    """Return the value of a JSON text whose strings can be printed and written: half of a character cannot.

    Raises:
        ValueError: it is no JSON, or has half of a character, or brackets that are nested too deeply.
    """
    try:
        value = json.loads(content)
        if "\\u" in (content if isinstance(content, str) else content.decode()):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("too many brackets in each other") from error
    return value


def misfit(value: Any, kind: Any, place: str) -> str:
    """Return where and why a value is not of a type; empty if it is.

    Args:
        value: as ``json.loads`` returned it.
        kind: a dataclass, whose fields are the keys of an object, or a type of scalars, lists, mappings and unions.
        place: name of the value in the message.
    """
    return next(_misfits(value, kind, place), "")


def _misfits(value: Any, kind: Any, place: str) -> Iterator[str]:
    origin, of = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin in {Union, UnionType}:
        reasons = [misfit(value, member, place) for member in of]
        if all(reasons):
            yield reasons[0]
    elif is_dataclass(kind) and isinstance(value, dict):
        yield from _misfits_of_fields(value, kind, place)
    elif origin in {list, tuple} and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _misfits(item, of[0], f"{place}[{number}]")
    elif origin in {dict, Mapping} and isinstance(value, dict):
        for name, item in value.items():
            yield from _misfits(item, of[1], f"{place}.{name}")
    elif type(value) not in _TYPES.get(kind, ()):
        yield f"{place}: got {shortened(value)}, need {_NAMES.get(origin or kind, 'an object')}"


def _misfits_of_fields(value: dict[str, Any], kind: Any, place: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.metadata == SPREAD:
            yield from _misfits_of_fields(value, hints[field.name], place)
        elif field.name in value:
            yield from _misfits(value[field.name], hints[field.name], f"{place}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            yield f"{place} has no {field.name}"
