"""Arguments of constructs, one dataclass each: types, defaults and documentation. No cdktf.

A construct takes its dataclass, ``podwright_constructs.checks`` checks it, settings read from a file may inherit it,
and ``docs/constructs.md`` prints it.

A construct that takes a few plain arguments has no dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, TypeVar, get_type_hints

from typing_extensions import Doc

T = TypeVar("T")


@dataclass(frozen=True)
class PassedAs:
    """Mark a field whose value the construct passes on unchanged, and name the argument that takes it.

    The name is Terraform's, or the property of AWS's API where a resource takes its desired state as JSON.
    """

    name: str


def documentation(arguments: type[Any]) -> dict[str, str]:
    """Return the documentation of each field: its own fields, then inherited ones.

    A field is documented by ``Doc``, or by its metadata in a dataclass for nodes, whose Python has no ``Annotated``.
    """
    fields: dict[str, Any] = getattr(arguments, "__dataclass_fields__", {})
    return {
        **{name: item.documentation for name, item in _annotated(arguments, Doc)},
        **{name: field.metadata["doc"] for name, field in fields.items() if "doc" in field.metadata},
    }


def passed(arguments: Any) -> dict[str, Any]:
    """Return the values of the fields that are annotated with ``PassedAs``, by the names of their arguments."""
    return {name: getattr(arguments, field) for field, name in passed_names(type(arguments)).items()}


def passed_names(arguments: type[Any]) -> dict[str, str]:
    """Return the fields that are passed on unchanged, with the names of their arguments."""
    return {field: item.name for field, item in _annotated(arguments, PassedAs)}


def _annotated(arguments: type[Any], kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield each field that is annotated with an item of this kind, and the item."""
    for base in arguments.__mro__:
        if "__dataclass_fields__" not in vars(base):
            continue
        hints = get_type_hints(base, include_extras=True)
        for field in get_annotations(base):
            yield from ((field, item) for item in getattr(hints[field], "__metadata__", ()) if isinstance(item, kind))
