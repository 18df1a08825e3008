"""Convert texts of YAML files and flags to the fields of a dataclass, and report everything that is wrong at once.

Three converters remain, each where another cannot be. Pydantic reads cluster.yaml, whose sections are nested, chosen by
``source`` and described by a JSON Schema with definitions. This module reads run.yaml and job.yaml: nodes read them
before every start, and pydantic would be one more dependency there, for lists of scalars.
``podwright_bootstrap.features.build`` reads JSON that podwright wrote, on Python 3.8 without dependencies.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from podwright_common.similar_names import did_you_mean
from podwright_common.yaml_document import KeyPath, YamlDocument, shown

LONGEST_NUMBER = 100  # Characters: Python refuses to convert thousands of digits.
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NONE_WORDS = ("none", "null")
_HEXADECIMAL = re.compile("[+-]?0[xX]")


class FieldType(NamedTuple):
    """The type of a field: a scalar, a dataclass, ``tuple`` for words, or ``dict`` for texts or contents by name."""

    kind: Any
    is_optional: bool = False
    item: Any = None  # Of a mapping.


class Setting(NamedTuple):
    """A value that a file or a flag gives."""

    value: Any
    document: YamlDocument | None = None
    path: KeyPath = ()

    def problem(self, message: str, *, at_key: bool = False) -> str:
        """Return a problem with the value, after its place if a file has it."""
        return f"{self.document.place(self.path, key=at_key)}: {message}" if self.document else message

    def refusal(self, need: str) -> ValueError:
        """Return an error that says what was given and what is allowed."""
        return ValueError(f"got {in_words(self.value)}{'' if self.document else ' (flag)'}, need {need}")


@cache
def field_types(cls: type) -> dict[str, FieldType]:
    """Return the type of each field of a dataclass, by name."""
    hints = get_type_hints(cls)
    return {item.name: _field_type(hints[item.name]) for item in fields(cls)}


def values_in(document: YamlDocument, path: KeyPath = ()) -> dict[str, Setting]:
    """Return the values of a mapping in a file, by key."""
    data = document.data
    for key in path:
        data = data[key]
    return {key: Setting(value, document, (*path, key)) for key, value in (data or {}).items()}


def converted(
    cls: type, setting_by_name: Mapping[str, Setting], problems: list[str], *, null_is_default: bool = False
) -> dict[str, Any]:
    """Return the valid values of a dataclass's fields; add a problem for each that is unknown or wrong.

    Args:
        cls: The dataclass; the metadata of its fields are limits, as ``option`` makes them.
        setting_by_name: Values by the names of fields.
        problems: List that gets the problems.
        null_is_default: Whether an empty value leaves the default. Default: it is None, if the field admits that.
    """
    types, values = field_types(cls), {}
    limits = {item.name: item.metadata for item in fields(cls)}
    for name, setting in setting_by_name.items():
        if name not in types:
            problems.append(setting.problem(unknown(name, "key", types), at_key=True))
        elif is_dataclass(types[name].kind):
            values[name] = _section(name, types[name].kind, setting, problems, null_is_default=null_is_default)
        elif setting.value is not None or not null_is_default:
            try:
                values[name] = _value(setting, types[name], limits[name])
            except ValueError as error:
                problems.append(setting.problem(f"{name}: {error}"))
    return values


def unknown(name: str, kind: str, known_names: Iterable[str]) -> str:
    """Return a sentence about an unknown name, with the closest known name."""
    return f"unknown {kind} {shown(name)}{did_you_mean(name, known_names, cutoff=0.7, prefix='; ')}"


def in_words(value: Any) -> str:
    """Return a value, shortened to one line for a message."""
    if value is None or value == "":
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else shown(str(value))


def _field_type(hint: Any) -> FieldType:
    inner = get_args(hint)
    if NoneType in inner:
        return FieldType(_field_type(inner[0]).kind, is_optional=True)
    if get_origin(hint) is tuple:
        return FieldType(tuple)
    return FieldType(dict, item=inner[1]) if inner else FieldType(hint)


def _section(name: str, cls: type, setting: Setting, problems: list[str], *, null_is_default: bool) -> Any:
    if not isinstance(setting.value, dict) or setting.document is None:
        problems.append(setting.problem(f"{name}: need `key: value` lines"))
        return cls()
    return cls(**converted(cls, values_in(setting.document, setting.path), problems, null_is_default=null_is_default))


def _value(setting: Setting, to: FieldType, limits: Mapping[str, Any]) -> Any:
    if to.kind is tuple:
        return _words(setting)
    if to.kind is dict:
        return _by_name(setting, to.item, may_be_secret=limits["may_be_secret"])
    words = limits.get("words", ())
    if setting.value in words:
        return setting.value
    try:
        return _within_limits(setting, _scalar(setting, to), limits)
    except ValueError as error:
        raise ValueError(" or ".join([str(error), *words])) from error


def _scalar(setting: Setting, to: FieldType) -> Any:
    text = setting.value
    if text is None or (to.is_optional and str(text).lower() in NONE_WORDS):
        if to.is_optional:
            return None
        raise setting.refusal("a value")
    if to.kind is bool:
        if str(text).lower() not in BOOLEANS:
            raise setting.refusal("true or false")
        return BOOLEANS[str(text).lower()]
    need = {int: "a whole number", float: "a number", str: "one value"}[to.kind]
    if isinstance(text, list | dict):
        raise setting.refusal(need)
    if to.kind is str:
        return str(text)
    if len(str(text)) > LONGEST_NUMBER:
        raise setting.refusal(f"{need} of at most {LONGEST_NUMBER} characters")
    try:
        return (
            _integer(str(text))
            if to.kind is int
            else float(str(text).lower().replace(".inf", "inf").replace(".nan", "nan"))
        )
    except ValueError:
        raise setting.refusal(need) from None


def _integer(text: str) -> int:
    return int(text, 16) if _HEXADECIMAL.match(text) else int(text)


def _within_limits(setting: Setting, value: Any, limits: Mapping[str, Any]) -> Any:
    if value is None:
        return value
    choices = limits.get("choices")
    if choices and value not in choices:
        raise setting.refusal(f"one of {', '.join(choices)}{did_you_mean(str(value), choices, prefix='; ')}")
    minimum, maximum = limits.get("at_least"), limits.get("at_most")
    if None not in {minimum, maximum} and not minimum <= value <= maximum:
        raise setting.refusal(f"{minimum:g} to {maximum:g}")
    if minimum is not None and not value >= minimum:
        raise setting.refusal(f"at least {minimum}")
    if limits.get("above") is not None and not value > limits["above"]:
        raise setting.refusal(f"more than {limits['above']}")
    if maximum is not None and not value <= maximum:
        raise setting.refusal(f"at most {maximum}")
    if limits.get("below") is not None and not value < limits["below"]:
        raise setting.refusal(f"less than {limits['below']}")
    if isinstance(value, float) and not math.isfinite(value):
        raise setting.refusal("a finite number")
    return value


def _words(setting: Setting) -> tuple[str, ...]:
    """Return the words of a command line, or of a list."""
    if isinstance(setting.value, str):
        try:
            return tuple(shlex.split(setting.value, comments=True))
        except ValueError as error:
            raise ValueError(f"{error}; quotes of a shell go in pairs") from error
    if not isinstance(setting.value, list):
        raise setting.refusal("a text or a list of words")
    if not all(isinstance(word, str) for word in setting.value):
        raise ValueError("each word of the list is one value; put an empty one in quotes")
    return tuple(setting.value)


def _by_name(setting: Setting, item: Any, *, may_be_secret: bool) -> dict[str, Any]:
    """Return texts by name, or contents of files by name; a flag has ``NAME=text`` words."""
    if isinstance(setting.value, str) and not setting.document:
        return _by_name_in_words(_words(setting))
    if not isinstance(setting.value, dict):
        is_hidden = may_be_secret and setting.value and not isinstance(setting.value, list)
        raise (setting._replace(value="a text") if is_hidden else setting).refusal("`NAME: value` lines")
    if item is not str and setting.document:
        return {name: _content(setting.document, (*setting.path, name)) for name in setting.value}
    if wrong := [name for name, text in setting.value.items() if isinstance(text, dict | list)]:
        place = "a variable" if may_be_secret else shown(wrong[0])
        raise ValueError(f"{place}: {setting._replace(value=setting.value[wrong[0]]).refusal('one value')}")
    return {name: text or "" for name, text in setting.value.items()}


def _by_name_in_words(words: Iterable[str]) -> dict[str, str]:
    """Return the texts of a flag's words; a message does not repeat them, as one may be a secret."""
    pairs = [word.partition("=") for word in words]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("need NAME=value words (flag)")
    counts = Counter(name for name, _, _ in pairs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"{twice[0] if twice[0].isupper() else 'a variable'} is given twice; keep one of them (flag)")
    return {name: text for name, _, text in pairs}


def _content(document: YamlDocument, path: KeyPath) -> Any:
    """Return a file's content as values that JSON can write: a date becomes its text."""
    try:
        return json.loads(json.dumps(document.typed(path), default=_date, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{shown(str(path[-1]))}: {error}: need texts, numbers, lists and mappings") from error


def _date(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"got {in_words(value)}")
