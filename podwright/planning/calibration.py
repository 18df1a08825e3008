"""Measured efficiencies that no data sheet gives, each with its source.

They are constants such as shares of the peak and passes over memory, in ``data/calibration.csv``.
``bench/calibrate.py`` fits them to published runs. ``bench/planner.py`` evaluates them, and fits them for that without
the source that it predicts.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files


class Calibration:
    """Constants by dotted name. ``matrix.hopper.fp4`` falls back to ``matrix.hopper``, then to ``matrix``."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.values = dict(values)
        self._found: dict[str, float] = {}

    def __call__(self, *parts: str) -> float:
        """Return the constant with the longest known prefix of ``parts``."""
        name = ".".join(parts)
        if name not in self._found:
            self._found[name] = self._search(name.split("."))
        return self._found[name]

    def replaced(self, changes: Mapping[str, float]) -> Calibration:
        """Return a copy with some constants changed."""
        return Calibration({**self.values, **changes})

    def _search(self, parts: list[str]) -> float:
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in self.values:
                return self.values[name]
        raise KeyError(".".join(parts))


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """Read the constants of ``data/calibration.csv``."""
    text = files(__package__).joinpath("data/calibration.csv").read_text(encoding="utf-8")
    return Calibration({row["name"]: float(row["value"]) for row in csv.DictReader(text.splitlines())})
