"""The base class of every section of the settings file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import GenericAlias
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from podwright_constructs.arguments import documentation


class UnknownValueError(Exception):
    """A rule read a value that is wrong in the file; the rule has no result. Never shown to users."""


class _Unknown:
    """Marks a value that is wrong in the file, so that the rest of the file is still checked."""


UNKNOWN = _Unknown()


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys.

    A section may inherit the arguments of a construct: each becomes a key, with its type, default and documentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Describe inherited arguments, and put the section's own keys first, as ``source`` is in the file.

        A list of a file is a tuple here, because settings are frozen.
        """
        for name, text in documentation(cls).items():
            field = cls.model_fields[name] = cls.model_fields.pop(name)
            field.description = field.description or text
            if get_origin(field.annotation) is Sequence:
                field.annotation = cast("Any", GenericAlias(tuple, (*get_args(field.annotation), ...)))

    def knows(self, name: str) -> bool:
        """Return whether the file's value of a key is valid."""
        return self.__dict__[name] is not UNKNOWN

    if not TYPE_CHECKING:  # a type checker would take it as "any attribute exists"

        def __getattribute__(self, name: str) -> Any:
            """Return the value; raise ``UnknownValueError`` for one that is wrong in the file."""
            value = super().__getattribute__(name)
            if value is UNKNOWN:
                raise UnknownValueError(name)
            return value


def texts(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text of the settings with its path; skip wrong values."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            with suppress(UnknownValueError):
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
