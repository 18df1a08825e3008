"""Training software of published runs, by generation."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from podwright.planning.trainer_software import Software
from published.constants import DATA

Graphs = Literal["none", "parts", "all"]
GRAPHS: tuple[Graphs, ...] = ("none", "parts", "all")


@dataclass(frozen=True, kw_only=True)
class PublishedSoftware(Software):
    """Software with properties that podwright's own does not vary.

    - ``flash_attention``: whether attention's core is fused, so that no scores are kept.
    - ``sequence_parallel``: whether tensor-parallel ranks divide norms and residuals too.
    - ``graphs``: which kernels are CUDA graphs, so that the host does not launch them one by one: ``parts`` are all but
      the experts and their all-to-all.
    - ``overlaps_experts``: whether the all-to-all of one micro-batch runs beside the products of another.
    """

    flash_attention: bool
    sequence_parallel: bool
    graphs: Graphs = "none"
    overlaps_experts: bool = False

    def sequence_shards(self, tensor_parallel: int) -> int:
        """Return 1 without sequence parallelism: every tensor-parallel rank repeats norms and residuals."""
        return tensor_parallel if self.sequence_parallel else 1


def software_of(description: str) -> PublishedSoftware | None:
    """Return the software whose name or version is in the text, or None."""
    return next((software for pattern, software in _catalog() if pattern.search(description)), None)


def software_named(name: str) -> PublishedSoftware:
    """Return the software of that name, or raise ``KeyError``."""
    return {software.name: software for _, software in _catalog()}[name]


@lru_cache(maxsize=1)
def _catalog() -> tuple[tuple[re.Pattern[str], PublishedSoftware], ...]:
    with (DATA / "software.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            (
                re.compile(row["framework_pattern"], re.IGNORECASE),
                PublishedSoftware.of_row(
                    row,
                    flash_attention=row["flash_attention"] == "1",
                    sequence_parallel=row["sequence_parallel"] == "1",
                ),
            )
            for row in csv.DictReader(file)
        )
