"""Parse and format quantities with units: ``78B`` tokens, ``5k`` steps, ``7d``."""

from __future__ import annotations

import re

from podwright.errors import PodwrightError

GIB = 2**30
GB = 10**9
DAY_S = 86_400.0
HOUR_S = 3_600.0
LARGEST = 1e18  # Sums of larger numbers of tokens, dollars or nodes overflow.

_COUNT_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "q": 1e15}
_DURATION_SUFFIXES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
_NUMBER = re.compile(r"\s*\$?\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class UnitError(PodwrightError, ValueError):
    """The text is not a quantity of this kind. The message shows one that is."""


def parse_count(text: str, *, label: str, need: str = "a number like 78B, 5k or 78e9") -> float:
    """Parse a positive number: ``78e9``, ``78B``, ``5k``, ``1.5T``, ``50,432``.

    Messages call it ``label``, and say that they ``need`` one.

    Raises:
        UnitError: The text has no number, an unknown suffix, a value of zero or less, or one above ``LARGEST``.
    """
    number, suffix = _split(text, label=label, need=need)
    if suffix not in _COUNT_SUFFIXES:
        raise UnitError(f"{label}: unknown suffix {suffix!r} in {text!r}. Use k, M, B or T, as in 78B")
    return _positive(number * _COUNT_SUFFIXES[suffix], text, label)


def parse_whole(text: str, *, label: str) -> int:
    """Parse a positive whole number, with a suffix too: ``4``, ``8k``.

    Raises:
        UnitError: As in ``parse_count``, or the number is not whole.
    """
    number = parse_count(text, label=label, need="a whole number")
    if number != int(number):
        raise UnitError(f"{label}: got {text}, need a whole number")
    return int(number)


def parse_duration(text: str, *, label: str) -> float:
    """Return the seconds of ``7d``, ``36h``, ``90min``, ``600s`` or ``2w``. The unit is required.

    Raises:
        UnitError: The text has no number, no known unit, a value of zero or less, or one above ``LARGEST``.
    """
    number, suffix = _split(text, label=label, need="a number like 7d or 36h")
    if suffix not in _DURATION_SUFFIXES:
        problem = (
            f"has no unit. Write {text.strip()}d for days"
            if not suffix
            else f"has the unknown unit {suffix!r}. Use s, min, h, d or w"
        )
        raise UnitError(f"{label}: {text!r} {problem}, as in 7d or 36h")
    return _positive(number * _DURATION_SUFFIXES[suffix], text, label)


def format_count(value: float) -> str:
    """Format with three significant digits: ``78e9`` is ``78B``."""
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """Format seconds in a readable unit."""
    if seconds >= 999.5 * DAY_S:  # three digits of %g would be 1e+03
        return f"{float(f'{seconds / DAY_S:.3g}'):,.0f} days"
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:.3g} days"
    if seconds >= 2 * HOUR_S:
        return f"{seconds / HOUR_S:.3g} h"
    if seconds >= 120:  # noqa: PLR2004 - two minutes, as two hours and two days above
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s"


def _split(text: str, *, label: str, need: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise UnitError(f"{label}: got {text!r}, need {need}")
    return float(match[1].replace(",", "").replace("_", "")), match[2].lower()


def _positive(value: float, text: str, label: str) -> float:
    if value <= 0:
        raise UnitError(f"{label}: got {text}, need more than zero")
    if value > LARGEST:
        raise UnitError(f"{label}: got {text}, need at most {LARGEST:g}")
    return value
