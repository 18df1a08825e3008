"""Measured efficiencies of other trainers, in addition to those of podwright's planner."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

from podwright.planning.calibration import Calibration, calibration

DATA = Path(__file__).parent / "data"
CONSTANTS = DATA / "calibration.csv"


@lru_cache(maxsize=1)
def constants() -> Calibration:
    """Return the planner's constants with those of ``data/calibration.csv``."""
    with CONSTANTS.open(newline="", encoding="utf-8") as file:
        return calibration().replaced({row["name"]: float(row["value"]) for row in csv.DictReader(file)})
