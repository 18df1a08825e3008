"""Base classes of constructs and bindings: arguments are checked before, assignments refused afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from constructs import Construct
from jsii import JSIIAbstractClass

from podwright_constructs.argument_types import type_problems
from podwright_constructs.problems import InvalidArgumentsError, Problem, is_token

_MADE = "_is_made"


class IneffectiveAssignmentError(AttributeError):
    """An attribute was assigned after the construct was made, which would change nothing."""


class Immutable:
    """Refuses assignments to public attributes once the object is made, except to those that have a setter.

    What a construct was given is in Terraform's configuration by then, so the assignment would do nothing. A class of
    yours that inherits from a construct assigns its own attributes in its ``__init__``.
    """

    def __setattr__(self, name: str, value: object) -> None:
        attribute = getattr(type(self), name, None)
        settable = isinstance(attribute, property) and attribute.fset is not None
        if not name.startswith("_") and not settable and getattr(self, _MADE, False):
            raise IneffectiveAssignmentError(_advice(self, name))
        super().__setattr__(name, value)


class Made(JSIIAbstractClass):
    """The metaclass of constructs and bindings: marks an object when the outermost ``__init__`` is done."""

    def __call__(cls, *positional: Any, **named: Any) -> Any:  # noqa: N805 -- of a metaclass
        """Make an object."""
        construct: Any = super().__call__(*positional, **named)
        setattr(construct, _MADE, True)
        return construct


class CheckedBeforeMade(Made):
    """The metaclass of constructs, whose arguments' types are compared with their annotations."""

    def __call__(cls, *positional: Any, **named: Any) -> Any:  # noqa: N805 -- of a metaclass
        """Make an object, if its arguments are of the right types.

        Raises:
            InvalidArgumentsError: an argument is not of the type that its annotation names, or the id is a token.
        """
        signature = _signature(cls)
        try:
            bound = signature.bind(None, *positional, **named)
        except TypeError:  # Python's message about a missing or unknown argument names the class only when it calls it.
            return super().__call__(*positional, **named)
        problems = [*_id_problems(bound.arguments.get("id_")), *type_problems(_initializer(cls), bound)]
        if problems:
            raise InvalidArgumentsError(cls.__name__, problems)
        return super().__call__(*positional, **named)


class CheckedConstruct(Immutable, Construct, metaclass=CheckedBeforeMade):
    """The base class of our constructs."""


def _initializer(kind: Any) -> Callable[..., None]:
    initializer: Callable[..., None] = kind.__init__
    return initializer


@cache
def _signature(kind: type) -> inspect.Signature:
    return inspect.signature(_initializer(kind))


def _id_problems(id_: object) -> list[Problem]:
    if not isinstance(id_, str) or not is_token(id_):
        return []
    hint = "The id is part of the name of each resource in Terraform's configuration and state."
    return [Problem("malformed", ("id_",), id_, "a text that is known when the app runs", hint)]


def _advice(construct: Any, name: str) -> str:
    """Say which argument to give instead."""
    kind = type(construct)
    start = f"{kind.__name__}.{name} cannot be assigned, because that would change nothing: "
    maker = construct.node.scope
    if not isinstance(construct, CheckedConstruct) and isinstance(maker, CheckedConstruct):
        return (
            f"{start}{type(maker).__name__} makes this resource. Give {type(maker).__name__} one of its arguments "
            f'({_listed(type(maker))}), or call add_override("{name}", …).'
        )
    if name in _arguments(kind):
        return f"{start}give it as an argument, {kind.__name__}(…, {name}=…)."
    return f"{start}the arguments of {kind.__name__} are {_listed(kind)}."


def _arguments(kind: type) -> Sequence[str]:
    parameters = _signature(kind).parameters.values()
    hidden = {"self", "scope", "id_"}
    return [item.name for item in parameters if item.name not in hidden and item.kind is not item.VAR_KEYWORD]


def _listed(kind: type) -> str:
    return ", ".join(_arguments(kind))
