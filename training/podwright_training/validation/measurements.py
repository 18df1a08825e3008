"""The measurements of one validation, and their JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from podwright_training.json_text import to_json

SCHEMA = "podwright.measurements/1"
FILE_NAME = "measurements.json"


@dataclass(frozen=True)
class Gpu:
    """One GPU under load. A value that the driver does not give is None."""

    index: int
    name: str
    sm_clock_mhz: float | None
    most_sm_clock_mhz: float | None
    ecc_uncorrected: int | None  # since the driver loaded
    throttled_by: tuple[str, ...]  # reasons that are faults, not power management
    tflops: float | None = None  # bf16 products of 8192 x 8192


@dataclass(frozen=True)
class NodeReport:
    """One node's own measurements. ``error`` says why there are none."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    efa_interfaces: int | None = None  # that libfabric lists; None without fi_info
    clock_offset_s: float | None = None  # The time service's; None if no program knows it.
    clock_source: str = ""
    write_mib_s: tuple[float, ...] = ()
    read_mib_s: tuple[float, ...] = ()
    error: str = ""

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> NodeReport:
        """Return the report of its JSON object."""
        gpus = tuple(Gpu(**{**gpu, "throttled_by": tuple(gpu["throttled_by"])}) for gpu in document["gpus"])
        speeds = {name: tuple(document[name]) for name in ("write_mib_s", "read_mib_s")}
        return cls(**{**document, **speeds, "gpus": gpus})


@dataclass(frozen=True)
class Reduction:
    """All-reduces among the ranks of one node or of a pair. ``error`` says why there are none."""

    nodes: tuple[str, ...]
    bus_gb_s: tuple[float, ...] = ()
    transport: str = ""
    size_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class Measurements:
    """All measurements of a job."""

    started_at: str
    finished_at: str
    job_id: str
    ranks_per_node: int
    nodes: tuple[NodeReport, ...]
    inside: tuple[Reduction, ...] = field(default=())  # Within one node each; empty with one rank per node.
    pairs: tuple[Reduction, ...] = field(default=())

    def speeds_of_pairs(self) -> dict[tuple[str, str], Sequence[float]]:
        """Return every measurement of each pair that has any."""
        speeds_by_pair: dict[tuple[str, str], list[float]] = {}
        for pair in self.pairs:
            if pair.bus_gb_s:
                speeds_by_pair.setdefault((min(pair.nodes), max(pair.nodes)), []).extend(pair.bus_gb_s)
        return {pair: tuple(speeds) for pair, speeds in speeds_by_pair.items()}

    def to_json(self) -> str:
        """Return the JSON document."""
        return to_json({"schema": SCHEMA, **asdict(self)}, indent=1)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Measurements:
        """Return the measurements of a document.

        Raises:
            ValueError: it is no such document, or one of another version.
        """
        if document.get("schema") != SCHEMA:
            raise ValueError(f"schema is {document.get('schema')!r}, must be {SCHEMA!r}")
        try:
            return cls(
                **{name: str(document[name]) for name in ("started_at", "finished_at", "job_id")},
                ranks_per_node=int(document["ranks_per_node"]),
                nodes=tuple(NodeReport.from_dict(node) for node in document["nodes"]),
                inside=tuple(_reduction(item) for item in document["inside"]),
                pairs=tuple(_reduction(item) for item in document["pairs"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no measurements: {error}") from error


def _reduction(document: dict[str, Any]) -> Reduction:
    return Reduction(**{**document, "nodes": tuple(document["nodes"]), "bus_gb_s": tuple(document["bus_gb_s"])})
