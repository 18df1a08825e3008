"""Training software, by generation: its states in memory and its kernels."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal

Sharding = Literal["none", "optimizer", "gradients", "full"]
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "full")
Reading = Literal["allocated", "reserved", "device"]
READINGS: tuple[Reading, ...] = ("allocated", "reserved", "device")
Graphs = Literal["none", "parts", "all"]
GRAPHS: tuple[Graphs, ...] = ("none", "parts", "all")


@dataclass(frozen=True, kw_only=True)
class Software:
    """Bytes per parameter of each state, and properties of the kernels.

    - ``sharding``: the framework's default over data-parallel ranks (ZeRO-1 is ``optimizer``, ZeRO-3 ``full``).
    - ``reserve_gb``: memory that the allocator and the communication libraries keep.
    - ``reads``: which memory its reports name: what tensors take (``allocated``), what PyTorch's allocator holds for
      them (``reserved``), or what the device has in use, with context and NCCL's buffers (``device``).
    - ``expandable_segments``: whether the allocator may grow its segments, which leaves few gaps.
    - ``graphs``: which kernels are CUDA graphs, so that the host does not launch them one by one: ``parts`` are all but
      the experts and their all-to-all.
    - ``overlaps_experts``: whether the all-to-all of one micro-batch runs beside the products of another.
    """

    name: str
    weight_bytes: float
    gradient_bytes: float
    master_bytes: float
    optimizer_bytes: float
    sharding: Sharding
    flash_attention: bool
    sequence_parallel: bool
    reserve_gb: float
    reads: Reading
    expandable_segments: bool
    compiled: bool
    graphs: Graphs = "none"
    overlaps_experts: bool = False

    @classmethod
    def of(cls, description: str) -> Software | None:
        """Return the software whose name or version is in the text, or None."""
        for pattern, software in _catalog():
            if pattern.search(description):
                return software
        return None

    @classmethod
    def named(cls, name: str) -> Software:
        """Return the software of that name, or raise ``KeyError``."""
        return {software.name: software for _, software in _catalog()}[name]


@lru_cache(maxsize=1)
def _catalog() -> tuple[tuple[re.Pattern[str], Software], ...]:
    text = files(__package__).joinpath("data/software.csv").read_text(encoding="utf-8")
    return tuple(
        (
            re.compile(row["framework_pattern"], re.IGNORECASE),
            Software(
                name=row["name"],
                weight_bytes=float(row["weight_bytes"]),
                gradient_bytes=float(row["gradient_bytes"]),
                master_bytes=float(row["master_bytes"]),
                optimizer_bytes=float(row["optimizer_bytes"]),
                sharding=next(item for item in SHARDINGS if item == row["sharding"]),
                flash_attention=row["flash_attention"] == "1",
                sequence_parallel=row["sequence_parallel"] == "1",
                reserve_gb=float(row["reserve_gb"]),
                reads=next(item for item in READINGS if item == row["reads"]),
                expandable_segments=row["expandable_segments"] == "1",
                compiled=row["compiled"] == "1",
            ),
        )
        for row in csv.DictReader(text.splitlines())
    )
