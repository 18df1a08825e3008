"""Build settings from a file with wrong or missing values, so that rules still check the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from podwright.check.findings import KeyPath
from podwright.settings.renamed import RENAMED
from podwright.settings.root import Settings
from podwright.settings.section import Section, sections, source_of
from podwright_common.similar_names import similar_names

S = TypeVar("S", bound=Section)
REFERENCE = "${unknown}"  # Each check of a construct lets a Terraform reference pass.
LARGE = 10**9  # No count, size or duration of the file is as large.


def incomplete(data: Mapping[str, Any]) -> Settings:
    """Return the settings that ``data`` describes, which name their wrong keys.

    A wrong or missing key has its default or, if it is required, a value of its type, on which no rule may depend. So
    has an optional key that is misspelt or has its former name.
    """
    builder = _Builder()
    return builder.section(Settings, data, ()).with_wrong_keys(builder.wrong_keys)


class _Builder:
    """Builds sections from data, and remembers which values their wrong keys could have."""

    def __init__(self) -> None:
        self.wrong_keys: dict[KeyPath, tuple[object, ...]] = {}

    def section(self, section: type[S], data: object, path: KeyPath) -> S:
        if not isinstance(data, dict):
            self.wrong_keys[path] = ()
            data = {}
        values: dict[str, Any] = {}
        for name, field in section.model_fields.items():
            if name in data or field.is_required():
                default = () if field.is_required() else (field.get_default(call_default_factory=True),)
                values[name] = self._value(field.annotation, data.get(name), (*path, name), default)
        for name in _meant(section, data, path):
            field = section.model_fields[name]
            default = field.get_default(call_default_factory=True)
            self.wrong_keys |= {(*path, name): (default, *_possible_values(field.annotation))}
        return cast("S", section.model_construct(**values))

    def _value(self, annotation: Any, value: object, path: KeyPath, default: tuple[object, ...]) -> object:
        origin, parts, options = get_origin(annotation), get_args(annotation), sections(annotation)
        if origin is tuple and options and isinstance(value, list):
            return tuple(self.section(options[0], item, (*path, index)) for index, item in enumerate(value))
        if origin in _MAPPINGS and isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: self._value(parts[1], item, (*path, key), ()) for key, item in value.items()}
        if len(options) > 1 and isinstance(value, dict):
            options = tuple(option for option in options if source_of(option) == value.get("source"))
        if options and origin is not tuple and isinstance(value, dict):
            return self.section(options[0], value, path)
        try:
            return TypeAdapter[Any](annotation).validate_python(value)
        except ValidationError:
            self.wrong_keys[path] = (*default, *_possible_values(annotation))
            return self.wrong_keys[path][0]


def _meant(section: type[Section], data: Mapping[Any, Any], path: KeyPath) -> Iterator[str]:
    """Yield the optional fields that unknown keys mean, by a former name or a misspelt one."""
    for key in data.keys() - section.model_fields.keys():
        name = RENAMED.get((*path, key)) or next(iter(similar_names(str(key), section.model_fields)), "")
        field = section.model_fields.get(name)
        if field and not field.is_required() and name not in data:
            yield name


def _possible_values(annotation: Any) -> tuple[object, ...]:
    """Return values of a type: every value of a choice, and examples of other types."""
    if options := sections(annotation) if get_origin(annotation) is not tuple else ():
        return (_Builder().section(options[0], {}, ()),)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return parts
    if origin in {Union, UnionType}:
        return tuple(value for part in parts for value in _possible_values(part))
    if origin is tuple:
        return ((), *((value,) for value in _possible_values(parts[0])))
    return _VALUES.get(origin or annotation, ())


_MAPPINGS = (dict, Mapping)
_VALUES: dict[Any, tuple[object, ...]] = {
    NoneType: (None,),
    bool: (False, True),
    int: (1, LARGE),
    str: (REFERENCE,),
    **dict.fromkeys(_MAPPINGS, ({},)),
}
