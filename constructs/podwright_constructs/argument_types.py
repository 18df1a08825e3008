"""Compare the types of a construct's arguments with its annotations. Standard library only.

The constructs' own checks read the values, and would end in Python's errors about a wrong type, such as ``'str' object
has no attribute 'items'``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from podwright_constructs.problems import NUMBER_IN_TEXT_HINT, Path, Problem, has_number_token, is_token

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "None"}
_UNKNOWN_LENGTH_HINT = "Give each item by itself: how many there are has to be known when the app runs."


def type_problems(function: Callable[..., object], arguments: inspect.BoundArguments) -> list[Problem]:
    """Return a problem for each argument that is not of the type that the function's annotations name."""
    named = {name: value for name, value in arguments.arguments.items() if name in _hints(function)}
    return [problem for name, value in named.items() for problem in _problems((name,), value, _hints(function)[name])]


@cache
def _hints(annotated: Any) -> Mapping[str, Any]:
    return get_type_hints(annotated)


def _problems(path: Path, value: object, hint: Any) -> Iterator[Problem]:
    """Yield what is wrong with a value; a type that is neither plain nor a collection is the construct's to judge."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        problems = [list(_problems(path, value, part)) for part in parts]
        if all(problems):  # The first of the alternatives is what the argument is for; others are None as a rule.
            yield from problems[0]
    elif origin is Literal:
        yield from () if isinstance(value, type(parts[0])) else [_wrong(path, value, f"{_choices(parts)}")]
    elif hint in _WORDS:
        yield from _of_plain(path, value, hint)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping | Sequence):
        yield from _of_collection(path, value, origin, parts)
    elif is_dataclass(hint):
        yield from _of_dataclass(path, value, hint)


def _of_plain(path: Path, value: object, kind: type) -> Iterator[Problem]:
    number = kind in {int, float}
    accepted = (int, float) if kind is float or (number and is_token(value)) else kind
    if not isinstance(value, accepted) or (number and isinstance(value, bool)):
        yield _wrong(path, value, _WORDS[kind])
    elif isinstance(value, str) and has_number_token(value):
        yield Problem(
            "malformed", path, value, "a text without a number that only Terraform will know", NUMBER_IN_TEXT_HINT
        )


def _of_collection(path: Path, value: object, origin: type, parts: Sequence[Any]) -> Iterator[Problem]:
    is_mapping = issubclass(origin, Mapping)
    if isinstance(value, str) or not isinstance(value, origin):
        hint = _UNKNOWN_LENGTH_HINT if is_token(value) or is_token(str(value)) else ""
        yield _wrong(path, value, "names with values" if is_mapping else "a list", hint)
    elif is_mapping and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _problems((*path, str(key)), item, parts[1])
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from _problems((*path, index), item, parts[0])


def _of_dataclass(path: Path, value: object, kind: Any) -> Iterator[Problem]:
    if not isinstance(value, kind):
        yield _wrong(path, value, f"{kind.__name__}(…)")
        return
    hints = _hints(kind)
    for field in fields(kind):
        yield from _problems((*path, field.name), getattr(value, field.name), hints[field.name])


def _wrong(path: Path, value: object, need: str, hint: str = "") -> Problem:
    shown = value if isinstance(value, str | int | float | NoneType) else f"a {type(value).__name__}"
    return Problem("malformed", path, shown, need, hint)


def _choices(choices: Sequence[object]) -> str:
    *leading, final = map(str, choices)
    return f"{', '.join(leading)} or {final}" if leading else final
