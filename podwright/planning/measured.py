"""The bandwidth of a cluster's own network, which `podwright validate` measured.

It reads the JSON document that ``podwright validate --output`` writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from podwright.errors import PodwrightError
from podwright.json_document import read_json
from podwright.planning.accelerator import Accelerator
from podwright.planning.calibration import calibration

SCHEMA = "podwright.validate/1"
CPU = "gloo"  # the transport of ranks without GPUs


class MeasuredError(PodwrightError, ValueError):
    """The file has no measurements that the planner can use. The message says why."""


@dataclass(frozen=True)
class MeasuredNetwork:
    """Bus bandwidths of all-reduces, in 1e9 bytes per second.

    - ``pair_bus_gb_s``: among all accelerators of two nodes.
    - ``node_bus_gb_s``: among those of one node; None if it has one.
    """

    instance_type: str
    pair_bus_gb_s: float
    node_bus_gb_s: float | None = None

    @classmethod
    def read(cls, path: Path) -> MeasuredNetwork:
        """Read the document of `podwright validate --output`.

        Raises:
            MeasuredError: the file has no measurements, no pair of nodes was measured, or the ranks ran on CPUs.
        """
        document = read_json(path, flag="--measured", error_class=MeasuredError)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise MeasuredError(f"--measured {path}: not {SCHEMA}. `podwright validate --output FILE` writes it")
        if any(str(word).startswith(CPU) for word in document.get("transports", ())):
            raise MeasuredError(f"--measured {path}: measured on CPUs with {CPU}, and training uses NCCL")
        pair, inside = document.get("pair_bus_gb_s"), document.get("node_bus_gb_s")
        if not _is_speed(pair) or not (inside is None or _is_speed(inside)):  # JSON has NaN and infinity too
            raise MeasuredError(f"--measured {path}: no pair of nodes was measured (pair_bus_gb_s is {pair!r})")
        return cls(str(document.get("instance_type")), float(pair), inside)

    def of(self, accelerator: Accelerator, *, count: int) -> Accelerator:
        """Return the accelerator with the measured links.

        Args:
            accelerator: one of a node's.
            count: of them in a node.
        """
        # The planner takes a share of the card's bandwidth, which a measurement has lost already.
        nic_gb_s = self.pair_bus_gb_s / count / calibration()("network")
        link_gb_s = max(self.node_bus_gb_s or accelerator.link_gb_s, self.pair_bus_gb_s)
        return replace(accelerator, nic_gb_s=nic_gb_s, link_gb_s=link_gb_s)


def _is_speed(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
