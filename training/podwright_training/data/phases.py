"""Read the phases of a mixture's file: the steps or tokens of a run from which on other weights apply."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from podwright_common.similar_names import did_you_mean
from podwright_common.yaml_document import KeyPath
from podwright_training.config.conversion import in_words

PHASES = "phases"
STARTS = ("from_step", "from_tokens")
EARLIEST = {"from_step": 2, "from_tokens": 1}  # A phase that began earlier would leave the sources' own weights unused.


class Problem(NamedTuple):
    """A wrong value of a mixture's file, or the wrong key that it has."""

    path: KeyPath
    message: str
    at_key: bool = False


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Weights of a mixture from a step on, or from a number of tokens on.

    Attributes:
        weights: Weight of each source that is read, by its name and in the order of the sources.
        from_step: First step whose batch has these weights.
        from_tokens: Tokens of the run before the first sequence that has these weights.
    """

    weights: Mapping[str, float]
    from_step: int | None = None
    from_tokens: int | None = None


def phases_of_entries(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Phase]:
    """Return the phases of a file's entries without problems; sources of weight 0 are left out."""
    return [
        Phase(
            weights={name: weight for name in names if (weight := number(entry["weights"].get(name, "0")))},
            from_step=_start(entry, "from_step"),
            from_tokens=_start(entry, "from_tokens"),
        )
        for entry in entries
    ]


def problems_of_phases(entries: Sequence[Any], names: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with the entries of a file, each with the place of the value."""
    before: tuple[str, int] | None = None
    for index, entry in enumerate(entries):
        path, label = (PHASES, index), f"phase {index + 1}"
        if not isinstance(entry, dict):
            yield Problem(path, f"{label}: got {in_words(entry)}, need {{from_step: …, weights: {{name: weight, …}}}}")
            continue
        for key in entry.keys() - {*STARTS, "weights"}:
            yield Problem((*path, key), f"{label}: unknown key {key}; keys: {', '.join(STARTS)}, weights", True)
        for problem in _problems_of_weights(entry, names):
            yield Problem((*path, *problem.path), f"{label}: {problem.message}", problem.at_key)
        keys = [key for key in STARTS if key in entry]
        if len(keys) != 1:
            got = " and ".join(keys) or "no start"
            yield Problem(path, f"{label}: got {got}, need either from_step or from_tokens")
            continue
        key, start = keys[0], _start(entry, keys[0])
        if start is None or start < EARLIEST[key]:
            message = f"got {in_words(entry[key])}, need a whole number of at least {EARLIEST[key]}"
            yield Problem((*path, key), f"{label}: {key}: {message}")
            continue
        if before and before[0] != key:
            message = f"but the phase before has {before[0]}: use one of them in all phases"
            yield Problem((*path, key), f"{label}: {key}, {message}")
        elif before and start <= before[1]:
            message = f"{key} {start:,} is not after {before[1]:,} of the phase before"
            yield Problem((*path, key), f"{label}: {message}: list phases in the order in which they begin")
        before = key, start


def number(text: Any) -> float | None:
    """Return a weight: a finite number of at least 0, ``None`` for any other value."""
    try:
        weight = int(text) if text.isdecimal() else float(text)
    except (TypeError, ValueError, AttributeError):
        return None
    return weight if 0 <= weight < math.inf else None


def _problems_of_weights(entry: Mapping[str, Any], names: Sequence[str]) -> Iterator[Problem]:
    weights = entry.get("weights")
    if not isinstance(weights, dict) or not weights:
        place = ("weights",) if "weights" in entry else ()
        yield Problem(place, "no weights: name the sources that this phase reads, as in weights: {name: 1}")
        return
    for name, text in weights.items():
        if name not in names:
            hint = did_you_mean(name, names, prefix="; ") or f"; sources: {', '.join(names)}"
            yield Problem(("weights", name), f"weights: the mixture has no source {name}{hint}", True)
        if number(text) is None:
            yield Problem(("weights", name), f"weights: {name}: got {in_words(text)}, need a number of at least 0")
    if all(number(text) == 0 for text in weights.values()):
        yield Problem(("weights",), "weights: each is 0, so that this phase reads no source")


def _start(entry: Mapping[str, Any], key: str) -> int | None:
    """Return the whole number at which a phase begins, which may be written as 2e9."""
    try:
        value = float(entry[key])
        return int(entry[key]) if entry[key].isdecimal() else int(value) if value.is_integer() else None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
