"""Base classes of constructs and bindings: arguments are checked before, assignments refused afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from constructs import Construct
from jsii import JSIIAbstractClass

from podwright_constructs.argument_types import type_problems
from podwright_constructs.problems import InvalidArgumentsError, Problem, is_token

_MADE = "_is_made"
_OURS = "_set_by_us"


class IneffectiveAssignmentError(AttributeError):
    """An attribute was assigned after the construct was made, which would change nothing."""


class Immutable:
    """Refuses assignments to arguments, and to attributes that our class set, once the object is made.

    What a construct was given is in Terraform's configuration by then, so the assignment would do nothing. A class of
    yours that inherits from a construct assigns its own attributes whenever it wants.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and getattr(self, _MADE, False) and _changes_nothing(self, name):
            raise IneffectiveAssignmentError(_advice(self, name))
        super().__setattr__(name, value)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _noting(
    initializer: Callable[..., None],
    problems_of: Callable[[Callable[..., None], inspect.BoundArguments], list[Problem]],
) -> Callable[..., None]:
    """Check arguments before our ``__init__``, and note afterwards which attributes it set."""
    signature = inspect.signature(initializer)

    @wraps(initializer)
    def checked(construct: Any, *positional: Any, **named: Any) -> None:
        try:
            bound = signature.bind(construct, *positional, **named)
        except TypeError:  # Python's message about an argument names the class only when it calls it.
            initializer(construct, *positional, **named)
            return
        if problems := problems_of(initializer, bound):
            raise InvalidArgumentsError(type(construct).__name__, problems)
        before = set(vars(construct))
        initializer(construct, *positional, **named)
        setattr(construct, _OURS, set(vars(construct)) - before | getattr(construct, _OURS, set()))

    return checked


class Made(JSIIAbstractClass):
    """The metaclass of constructs and bindings: marks an object when the outermost ``__init__`` is done."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **named: Any) -> None:  # noqa: N805 -- of a metaclass
        """Have our ``__init__`` note which attributes it sets, whatever class inherits from it."""
        super().__init__(name, bases, namespace, **named)
        if _is_ours(cls) and "__init__" in namespace:
            cls.__init__ = _noting(namespace["__init__"], cls._problems)  # type: ignore[misc] # with the same arguments

    def __call__(cls, *positional: Any, **named: Any) -> Any:  # noqa: N805 -- of a metaclass
        """Make an object."""
        construct: Any = super().__call__(*positional, **named)
        setattr(construct, _MADE, True)
        return construct

    def _problems(cls, _: Callable[..., None], _bound: inspect.BoundArguments) -> list[Problem]:  # noqa: N805
        return []


class CheckedBeforeMade(Made):
    """The metaclass of constructs: our ``__init__`` refuses arguments of other types than its annotations name."""

    def _problems(cls, initializer: Callable[..., None], bound: inspect.BoundArguments) -> list[Problem]:  # noqa: N805
        return [*_id_problems(bound.arguments.get("id_")), *type_problems(initializer, bound)]


class CheckedConstruct(Immutable, Construct, metaclass=CheckedBeforeMade):
    """The base class of our constructs."""


def _ours(kind: type) -> type:
    """Return the first class of ours that a class inherits its arguments from."""
    return next((base for base in kind.__mro__ if _is_ours(base) and "__init__" in vars(base)), kind)


def _changes_nothing(construct: Any, name: str) -> bool:
    """Return whether a name is an argument of ours, or an attribute that our class set."""
    attribute = getattr(type(construct), name, None)
    if isinstance(attribute, property):
        owner = next(base for base in type(construct).__mro__ if name in vars(base))
        return attribute.fset is None and _is_ours(owner)
    return name in getattr(construct, _OURS, ()) or name in _arguments(type(construct))


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
    parameters = _signature(_ours(kind)).parameters.values()
    hidden = {"self", "scope", "id_"}
    return [item.name for item in parameters if item.name not in hidden and item.kind is not item.VAR_KEYWORD]


def _listed(kind: type) -> str:
    return ", ".join(_arguments(kind))
