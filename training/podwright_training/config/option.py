"""Declare an option of a run: a dataclass field with its help text and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

Conflicts = Iterator[tuple[tuple[str, ...], str]]  # names of the options that conflict, and the message


def option(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    alias: str | None = None,
) -> Any:
    """Return a dataclass field for one option.

    Args:
        default: Value when neither preset, file nor flag sets it.
        text: One sentence of help.
        at_least: Smallest value.
        above: Exclusive lower bound.
        at_most: Largest value.
        below: Exclusive upper bound.
        choices: Allowed values.
        words: Words that are allowed besides numbers.
        alias: Second name, accepted as a flag and in files.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    return field(default=default, metadata={"text": text, "alias": alias, "choices": choices, "words": words, **limits})


def mapping_option(text: str, *, may_be_secret: bool = False) -> Any:
    """Return a dataclass field for values by name, empty by default.

    Args:
        text: One sentence of help.
        may_be_secret: Whether users may paste a secret there, which messages do not repeat.
    """
    return field(default_factory=dict, metadata={**option(None, text).metadata, "may_be_secret": may_be_secret})
