"""JSON documents that commands print and read: one is a dataclass, which `podwright schema` describes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from podwright_common.regular_file import read_text

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it since Python 3.11

LIMIT_BYTES = 16 << 20  # Files that people or commands write are far smaller.


@dataclass(frozen=True)
class JsonObject:
    """An object of a document, with a key for each field; later versions may add some.

    A text after a field is its description in the JSON Schema. A document's field ``schema`` is its name and version.
    Metadata of a field: ``key`` is its key, where that is another word; a number is rounded to ``digits``; an
    ``optional`` field is not printed while it has its default; the items of a ``spread`` mapping are keys themselves.
    """

    # Only `podwright schema` loads pydantic, which reads this and makes the JSON Schema.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    @classmethod
    def of(cls, source: object, **values: Any) -> Self:
        """Return the object with these values, and the source's attributes for other fields without a default."""
        needed = [item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING]
        names = [name for name in needed if name not in values]
        return cls(**{name: getattr(source, name) for name in names}, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the object as it is printed; objects in it stay objects."""
        return dict(_printed(self))


def to_json(document: JsonObject) -> str:
    """Return a document as JSON text."""
    return json.dumps(document, indent=2, default=_plain)


def read_json(path: Path, *, flag: str, error_class: type[Exception]) -> Any:
    """Return the JSON of a file that a flag names.

    Raises:
        error_class: the file cannot be read, is far larger than what programs write for it, or is not JSON.
    """
    try:
        return json.loads(read_text(path, limit_bytes=LIMIT_BYTES, follow_links=True))
    except OSError as error:
        raise error_class(f"cannot read {flag} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise error_class(f"{flag} {path} is not JSON: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat(timespec="seconds")
    if isinstance(value, JsonObject):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _printed(json_object: JsonObject) -> Iterator[tuple[str, Any]]:
    for item in fields(json_object):
        value = getattr(json_object, item.name)
        digits = item.metadata.get("digits")
        if item.metadata.get("optional") and value == _default(item):
            continue
        if item.metadata.get("spread"):
            yield from value.items()
        else:
            yield key_of(item), value if value is None or digits is None else round(value, digits)


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def key_of(item: Field[Any]) -> str:
    """Return the key of a field."""
    return str(item.metadata.get("key", item.name))
