"""Published bandwidths of collectives, each with its source."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """The bus bandwidths of one size that different sources published, in 1e9 bytes per second."""

    low_gb_s: float
    high_gb_s: float
    sources: tuple[str, ...]


def all_reduce(instance_type: str, *, nodes: int, size_bytes: int) -> Published | None:
    """Return the published speed of an all-reduce of this size, or None.

    Args:
        instance_type: such as ``ml.p5.48xlarge``, with a rank for each accelerator.
        nodes: number of nodes.
        size_bytes: of the data on each rank.
    """
    rows = [
        row
        for row in _rows()
        if (row["operation"], row["instance_type"]) == ("all_reduce", instance_type)
        and (int(row["nodes"]), int(row["size_bytes"])) == (nodes, size_bytes)
    ]
    if not rows:
        return None
    speeds = [float(row["bus_gb_s"]) for row in rows]
    return Published(min(speeds), max(speeds), tuple(dict.fromkeys(row["source"] for row in rows)))


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    text = files(__package__).joinpath("data/collectives.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
