"""Compare and print values of another trainer's checkpoint, which may be of any type and of any length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

LONGEST_TEXT = 60  # characters of a text in a message
LARGEST_NUMBER = 2**63  # Python refuses to print an integer of thousands of digits.


@dataclass(frozen=True)
class Opaque:
    """A value that is neither number nor text, nor a sequence of them; it equals no such value."""

    type_name: str


def plain(value: Any) -> Any:
    """Return a value that can be compared: a list as a tuple, a tensor of one element as its number.

    Objects of other types become ``Opaque``.
    """
    if value is None or isinstance(value, str | int | float | Opaque):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return Opaque(type(value).__name__)


def plain_text(value: Any) -> str:
    """Return a value as short text that a terminal only shows."""
    value = plain(value)
    if isinstance(value, Opaque):
        return f"an object ({value.type_name})"
    if isinstance(value, tuple):
        return shortened(f"({', '.join(map(plain_text, value))})")
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        return "a number of more than 18 digits"
    return shortened(str(value))


def shortened(text: str) -> str:
    """Return the beginning of a text that is long, escaped."""
    text = escaped(text[: LONGEST_TEXT + 1])
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def escaped(text: str) -> str:
    """Return a text on one line, with escapes for what a terminal would obey."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )
