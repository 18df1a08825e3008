"""The memory and time of a rank's step, and the document of all ranks. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CollectiveCalls:
    """Calls of a collective along a dimension of the ranks' mesh.

    Attributes:
        kind: Name of the collective.
        dimension: Name of the mesh dimension.
        calls: Calls in one step.
        size_bytes: Bytes of all whole tensors that it gathers, reduces or exchanges.
    """

    kind: str
    dimension: str
    calls: int
    size_bytes: int


@dataclass(frozen=True)
class Compilation:
    """Graphs of a rank's steps.

    Attributes:
        graphs: Captured graphs, one kernel launch or more each.
        breaks: Breaks of a graph, by the line of the trainer that causes them.
        recompiles: Compilations after the first, by the function and their reason.
    """

    graphs: int = 0
    breaks: dict[str, int] = field(default_factory=dict)
    recompiles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """Requirements of a rank's step.

    Attributes:
        rank: The rank that ran, for all of its kind.
        kind: Which ranks it stands for.
        parameters: Parameters in the rank's shards.
        peak_bytes: Memory of the device at the peak of the step.
        memory_bytes: The same by category (``device_memory.CATEGORIES``).
        saved_bytes: Bytes of a checkpoint that the rank writes at most, wherever they are kept; ranks with the same
            shards divide them.
        collectives: Those of one step.
        kernels: Launches of one step by kind.
        waits: Waits of the host for the device, by line of the trainer.
        flops: Floating-point operations of one step, recomputation included.
        compilation: Graphs of the first two steps, of a compiled run.
        start_s: Seconds to build the model and its groups here.
    """

    rank: int
    kind: str
    parameters: int
    peak_bytes: int
    memory_bytes: dict[str, int]
    saved_bytes: int
    collectives: list[CollectiveCalls]
    kernels: dict[str, int]
    waits: dict[str, int]
    flops: int
    compilation: Compilation
    start_s: float


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The document of `podwright-train dry-run --json`.

    Attributes:
        schema: Name and version of the document.
        world_size: Ranks of the job.
        findings: Problems that would end the job on GPUs, or slow it down.
        model_flops: Floating-point operations of the model in a step, divided evenly among ranks.
        ranks: One of each kind.
    """

    schema: str
    world_size: int
    findings: list[str]
    model_flops: float
    ranks: list[RankStep]
