"""Problems with a construct's arguments, as data, and the one error that lists them all. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Path = tuple[str | int, ...]  # ("instance_groups", 1, "count")

LARGEST_NUMBER_TOKEN = -1e280  # Tokens are numbers below it, such as -8.1e+298.

# ${aws:username}, ${s3:prefix, 'none'} and ${*} are IAM's: no reference of Terraform's begins with word and colon, but
# the functions of a provider begin with word and two, ${provider::aws::arn_parse(…)}.
POLICY_VARIABLE = re.compile(r"\$\{([A-Za-z0-9-]+:(?!:)[^{}]+|[*?$])\}")

_NUMBER_TOKEN_IN_TEXT = re.compile(r"-\d(\.\d+)?e\+(29|30)\d")  # What an f-string makes of it.
NUMBER_IN_TEXT_HINT = "Write Token.as_string(number) into a text instead of a number that only Terraform will know."

# The kinds of problems:
# malformed: the text does not have its form; choice: not one of a few values; range: a number too small or too large;
# size: too few or too many items; duplicate: two items share a name; overlap: two blocks or folders overlap;
# missing: a value is required here; conflict: does not go with another argument; unsafe: would let a node take others.
Code = Literal["malformed", "choice", "range", "size", "duplicate", "overlap", "missing", "conflict", "unsafe"]


@dataclass(frozen=True)
class Problem:
    """One argument that AWS would refuse.

    Args:
        code: The kind of problem.
        path: The argument, and below it the index or key of an item.
        value: The refused value, or a few words for it, such as ``2 controllers``.
        need: What AWS accepts; completes the sentence "got …, need …".
        hint: The reason, or what to do, where that is not obvious.
        is_default: Whether the value is the argument's default; the message then says so.
    """

    code: Code
    path: Path
    value: object
    need: str
    hint: str = ""
    is_default: bool = False

    @property
    def message(self) -> str:
        """One sentence that stands alone: ``subnet_ids[1]: got net-1, need an id like subnet-…``."""
        default = " (the default)" if self.is_default else ""
        return f"{dotted(self.path)}: got {_text(self.value)}{default}, need {self.need}"

    def below(self, *parents: str | int) -> Problem:
        """Return the problem of the same argument of a nested item."""
        return replace(self, path=(*parents, *self.path))

    def at(self, *path: str | int) -> Problem:
        """Return the problem under another argument's path."""
        return replace(self, path=path)

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InvalidArgumentsError(ValueError):
    """A construct's arguments are invalid; ``problems`` and the message list every reason."""

    def __init__(self, construct: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n  - ".join([f"{construct} has invalid arguments:", *map(str, self.problems)]))


def refuse(construct: object, problems: Sequence[Problem]) -> None:
    """Raise one error for all problems, if there are any.

    Raises:
        InvalidArgumentsError: There is at least one problem.
    """
    if problems:
        raise InvalidArgumentsError(type(construct).__name__, problems)


def dotted(path: Path) -> str:
    """Return a path as it is written: ``instance_groups[1].count``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def is_token(value: object) -> bool:
    """Return whether only Terraform will know a value: a reference in a text, or the kit's code for one as a number.

    IAM's policy variables are no references. https://developer.hashicorp.com/terraform/cdktf/concepts/tokens
    """
    if isinstance(value, str):
        return "TfToken[" in value or ("${" in value and "${" in POLICY_VARIABLE.sub("", value))
    return isinstance(value, (int, float)) and value <= LARGEST_NUMBER_TOKEN


def has_number_token(text: str) -> bool:
    """Return whether a text contains the kit's code for a number as digits, which nothing resolves any more."""
    return _NUMBER_TOKEN_IN_TEXT.search(text) is not None


def _text(value: object) -> str:
    if is_token(value):
        return "a value that only Terraform will know"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "an empty text"
