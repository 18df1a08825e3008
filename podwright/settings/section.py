"""The base class of every section of the settings file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from functools import cache
from types import GenericAlias, new_class
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from podwright_constructs.arguments import documentation


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys.

    A section may inherit the arguments of a construct or a feature of nodes, which are dataclasses: each field becomes
    a key, with its type, default and documentation, and a dataclass among the types becomes a section.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Describe inherited fields, between the section's required keys, such as ``source``, and its optional ones."""
        inherited, documented = getattr(cls, "__dataclass_fields__", {}), documentation(cls)
        fields = cls.model_fields
        optional = [name for name in fields if name not in documented and not fields[name].is_required()]
        for name in [*documented, *optional] if documented else []:
            fields[name] = fields.pop(name)
        for name, text in documented.items():
            field = fields[name]
            field.description = field.description or text
            field.annotation = _frozen(field.annotation)
            if inherited[name].default_factory is not MISSING:
                field.default_factory = inherited[name].default_factory


def _frozen(annotation: Any) -> Any:
    """Return the type of a setting for the type of a dataclass's field: tuples for lists, sections for dataclasses."""
    if is_dataclass(annotation) and isinstance(annotation, type):
        return annotation if issubclass(annotation, Section) else _derived(annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Union:
        return Union[tuple(_frozen(part) for part in inner)]  # noqa: UP007 (the parts are known when this runs)
    if origin is Sequence:
        return GenericAlias(tuple, (_frozen(inner[0]), ...))
    if origin is tuple:
        return GenericAlias(tuple, tuple(_frozen(part) for part in inner))
    return annotation


@cache
def _derived(dataclass: type[Any]) -> type[Section]:
    """Return a section with the name, documentation and fields of a dataclass."""
    namespace = {"__doc__": dataclass.__doc__, "__module__": dataclass.__module__}
    section: type[Section] = new_class(
        dataclass.__name__, (Section, dataclass), exec_body=lambda ns: ns.update(namespace)
    )
    return section


def texts(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text of the settings with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            yield from texts(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(item, (*path, key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))


def sections(annotation: Any) -> tuple[type[Section], ...]:
    """Return the section classes of a field's type: one, the variants of a union, or none for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(section for part in get_args(annotation) for section in sections(part))


def source_of(section: type[Section]) -> str:
    """Return the ``source`` that selects this variant of a resource."""
    return str(get_args(section.model_fields["source"].annotation)[0])
