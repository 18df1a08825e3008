"""Fit the planner's efficiencies to measured rows: robust, within bounds, near physically plausible values.

    python bench/calibrate.py [--passes 4] [--output calibration.csv]

Smallest: python bench/calibrate.py --passes 1 --output /dev/shm/calibration.csv

Without ``--output`` the constants go to the planner's table, and those of other trainers to ``bench/published/``.
Coordinate search on the mean absolute logarithmic error, every source group weighing as the square root of its rows,
with a pull towards the prior so that a handful of rows cannot drive a constant anywhere.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from published.constants import CONSTANTS as PUBLISHED
from published.constants import constants as all_constants
from published.speed import speed
from published.table_row import ROW_ERRORS, ParsedRow, parse_row

from podwright import planning
from podwright.planning.calibration import Calibration
from podwright_common.atomic_file import write_file

# name: (prior, lowest, highest, how far the prior lets it go, in natural logarithms)
FREE: Mapping[str, tuple[float, float, float, float]] = {
    "matrix.ampere": (0.80, 0.6, 0.97, 0.15),
    "matrix.hopper.bf16": (0.70, 0.5, 0.9, 0.15),
    "matrix.hopper.fp8": (0.60, 0.4, 0.85, 0.2),
    "matrix.blackwell.bf16": (0.70, 0.5, 0.9, 0.2),
    "matrix.blackwell.fp8": (0.60, 0.35, 0.85, 0.2),
    "matrix.blackwell.fp4": (0.50, 0.3, 0.85, 0.2),
    "matrix.blackwell.fp8.GB300": (0.62, 0.35, 0.9, 0.2),
    "matrix.neuron2": (0.50, 0.25, 0.8, 0.3),
    "attention.ampere": (0.58, 0.35, 0.75, 0.1),
    "attention.hopper": (0.45, 0.25, 0.7, 0.07),
    "attention.blackwell": (0.42, 0.2, 0.7, 0.3),
    "attention.neuron2": (0.30, 0.1, 0.6, 0.4),
    "attention_share.composer-fsdp": (0.6, 0.3, 1.2, 0.3),
    "attention_share.composer-fsdp.hopper": (0.48, 0.3, 1.2, 0.3),
    "attention_ramp": (300, 50, 1500, 0.7),
    "elementwise": (1.5, 0.8, 3.5, 0.3),
    "elementwise.composer-fsdp": (2.0, 0.8, 4, 0.3),
    "elementwise.deepspeed-2022": (2.0, 0.8, 5, 0.4),
    "elementwise.flash-attention-2023": (1.0, 0.5, 3, 0.3),
    "idle_waves": (0.5, 0.1, 1.5, 0.5),
    "depth_latency": (200, 50, 600, 0.5),
    "contention": (0.15, 0.0, 0.6, 0.7),
    "overlap_tensor": (0.5, 0.0, 0.95, 0.5),
    "overlap_expert": (0.3, 0.0, 0.95, 0.5),
    "experts": (2.0, 0.7, 8, 0.5),
    "experts.megatron-core.25": (3.0, 0.7, 8, 0.5),
    "experts.megatron-core.26": (2.0, 0.7, 8, 0.5),
    "experts.fused": (1.5, 0.7, 8, 0.5),
    "grouped_products": (0.8, 0.4, 1.0, 0.2),
    "scan": (0.05, 0.005, 0.4, 1.0),
    "launch_us.moe": (1600, 300, 8000, 0.7),
    "launch_us.moe.parts": (400, 100, 8000, 0.7),
    "expert_launch_us.megatron-core": (20, 5, 100, 0.7),
    "block_ms.deepspeed-2022": (6, 0, 30, 0.7),
    "jitter": (0.006, 0.0, 0.02, 0.7),
    "fixed_ms": (15, 0, 60, 0.7),
    "quantising": (4, 2, 12, 0.4),
}
PRODUCT = Path(planning.__file__).parent / "data" / "calibration.csv"
STEPS = (1.25, 1.08, 1.03)
PASSES = 4  # over all constants, with each of the steps
OUTLIER = 0.5  # beyond this logarithmic error a row pulls less


@dataclass(frozen=True)
class Measured:
    """A parsed row with a measured speed."""

    group: str
    case: ParsedRow
    tokens_per_s_per_gpu: float


def read(table: Path) -> list[Measured]:
    """Return the rows of the table that have a measured speed and can be predicted."""
    measured = []
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["tok_s_gpu"]:
                continue
            try:
                measured.append(Measured(row["group"], parse_row(row), float(row["tok_s_gpu"])))
            except ROW_ERRORS:
                continue
    return measured


def fit(rows: Sequence[Measured], start: Calibration, *, passes: int = PASSES) -> dict[str, float]:
    """Return the constants of ``FREE`` that fit ``rows`` best, after at most ``passes`` with each step."""
    return _Fit(rows, start).run(passes)


class _Fit:
    def __init__(self, rows: Sequence[Measured], start: Calibration) -> None:
        self.rows = rows
        sizes = Counter(row.group for row in rows)
        self.weights = [1 / math.sqrt(sizes[row.group]) for row in rows]
        self.values = {name: prior for name, (prior, *_) in FREE.items()}
        self.constants = start.replaced(self.values)
        self.losses = [self._loss(index, self.constants) for index in range(len(rows))]

    def run(self, passes: int) -> dict[str, float]:
        for step in STEPS:
            for _ in range(passes):
                if not sum(self._improve(name, step) for name in FREE):
                    break
        return self.values

    def _improve(self, name: str, step: float) -> bool:
        users = self._users(name)
        prior, lowest, highest, width = FREE[name]
        current = self.values[name]
        best = sum(self.losses[index] for index in users) + _pull(current, prior, width)
        for changed in (current * step, current / step):
            candidate = min(highest, max(lowest, changed))
            constants = self.constants.replaced({name: candidate})
            losses = {index: self._loss(index, constants) for index in users}
            if sum(losses.values()) + _pull(candidate, prior, width) < best - 1e-9:
                self.values[name], self.constants = candidate, constants
                for index, loss in losses.items():
                    self.losses[index] = loss
                return True
        return False

    def _users(self, name: str) -> list[int]:
        """Return the rows whose prediction uses the constant, or would if it existed."""
        parts = name.split(".")
        return [index for index in range(len(self.rows)) if _touches(self.rows[index].case, parts)]

    def _loss(self, index: int, constants: Calibration) -> float:
        row = self.rows[index]
        case = row.case
        took = speed(case.model, case.layout, case.accelerator, case.software, constants=constants)
        error = abs(math.log(took.tokens_per_s_per_gpu * case.per_gpu / row.tokens_per_s_per_gpu))
        return self.weights[index] * (min(error, OUTLIER) + 0.3 * max(0.0, error - OUTLIER))


def _touches(case: ParsedRow, parts: Sequence[str]) -> bool:
    words = {*case.software.name.split("."), case.accelerator.generation, case.accelerator.name, case.layout.precision}
    words |= {"moe" if case.model.experts else "dense", case.software.graphs}
    if case.software.graphs == "all":
        words.add("fused")
    return words.issuperset(parts[1:])


def _pull(value: float, prior: float, width: float) -> float:
    return 0.0 if value <= 0 else 0.03 * (math.log(value / prior) / width) ** 2


def read_constants(table: Path) -> list[dict[str, str]]:
    """Return the rows of a table of constants."""
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(values: Mapping[str, float], tables: Sequence[Path], target: Path) -> None:
    """Write the constants of the tables, with these values in their place."""
    rows = {row["name"]: row for table in tables for row in read_constants(table)}
    for name, value in values.items():
        rows[name].update(
            value=f"{value:.4g}", basis="fitted by bench/calibrate.py to bench/data/published_throughput.csv"
        )
    content = io.StringIO(newline="")
    writer = csv.DictWriter(content, ("name", "value", "unit", "basis"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[name] for name in sorted(rows))
    write_file(target, content.getvalue())


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=PASSES, help="over all constants, with each step")
    parser.add_argument("--output", type=Path, help="CSV file to write. Default: the tables that have the constants")
    arguments = parser.parse_args()
    rows = read(Path(__file__).parent / "data" / "published_throughput.csv")
    values = fit(rows, all_constants(), passes=arguments.passes)
    if arguments.output:
        write(values, [PRODUCT, PUBLISHED], arguments.output)
        return
    for table in (PRODUCT, PUBLISHED):
        names = {row["name"] for row in read_constants(table)}
        write({name: value for name, value in values.items() if name in names}, [table], table)


if __name__ == "__main__":
    main()
