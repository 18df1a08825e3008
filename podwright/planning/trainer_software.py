"""Training software that podwright runs: its states in memory and its kernels."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

Sharding = Literal["none", "optimizer", "gradients", "full"]
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "full")
Reading = Literal["allocated", "reserved", "device"]
READINGS: tuple[Reading, ...] = ("allocated", "reserved", "device")


@dataclass(frozen=True, kw_only=True)
class Software:
    """Bytes per parameter of each state, and properties of the kernels.

    - ``sharding``: the framework's default over data-parallel ranks (ZeRO-1 is ``optimizer``, ZeRO-3 ``full``).
    - ``reserve_gb``: memory that the allocator and the communication libraries keep.
    - ``reads``: which memory its reports name: what tensors take (``allocated``), what PyTorch's allocator holds for
      them (``reserved``), or what the device has in use, with context and NCCL's buffers (``device``).
    - ``expandable_segments``: whether the allocator may grow its segments, which leaves few gaps.
    - ``compiled``: whether elementwise operations are fused.
    """

    name: str
    weight_bytes: float
    gradient_bytes: float
    master_bytes: float
    optimizer_bytes: float
    sharding: Sharding
    reserve_gb: float
    reads: Reading
    expandable_segments: bool
    compiled: bool

    @classmethod
    def named(cls, name: str) -> Software:
        """Return the software of that name, or raise ``KeyError``."""
        return _catalog()[name]

    @classmethod
    def of_row(cls, row: Mapping[str, str], **properties: Any) -> Self:
        """Return the software of a row of a catalog; a subclass gets its further properties from the caller."""
        return cls(
            name=row["name"],
            weight_bytes=float(row["weight_bytes"]),
            gradient_bytes=float(row["gradient_bytes"]),
            master_bytes=float(row["master_bytes"]),
            optimizer_bytes=float(row["optimizer_bytes"]),
            sharding=next(item for item in SHARDINGS if item == row["sharding"]),
            reserve_gb=float(row["reserve_gb"]),
            reads=next(item for item in READINGS if item == row["reads"]),
            expandable_segments=row["expandable_segments"] == "1",
            compiled=row["compiled"] == "1",
            **properties,
        )


@lru_cache(maxsize=1)
def _catalog() -> dict[str, Software]:
    text = files(__package__).joinpath("data/software.csv").read_text(encoding="utf-8")
    return {row["name"]: Software.of_row(row) for row in csv.DictReader(text.splitlines())}
