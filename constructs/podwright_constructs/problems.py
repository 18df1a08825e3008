"""Everything that is wrong with the arguments of a construct, told at once. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One argument that AWS would refuse: what was given, what is allowed, and what to do where that is not obvious."""

    argument: str
    given: object
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.argument} = {self.given!r}: allowed is {self.allowed}"
        return f"{text}. {self.hint}" if self.hint else text


class InvalidArgumentsError(ValueError):
    """A construct cannot be made; ``problems`` and the message list every reason."""

    def __init__(self, construct: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n  - ".join([f"{construct} cannot be made:", *map(str, self.problems)]))


def refuse(construct: object, problems: Sequence[Problem]) -> None:
    """Raise one error for all problems, if there are any.

    Raises:
        InvalidArgumentsError: there is at least one problem.
    """
    if problems:
        raise InvalidArgumentsError(type(construct).__name__, problems)
