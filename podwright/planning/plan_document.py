"""The JSON document of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from podwright.json_document import JsonObject
from podwright.planning.layout import Layout
from podwright.planning.memory import MemoryItems
from podwright.planning.memory_tier import TierDocument
from podwright.planning.run_plan import Plan
from podwright_training.failures import Failures


@dataclass(frozen=True)
class _Model(JsonObject):
    """The model that is trained."""

    name: str
    parameters: int
    active_parameters: int
    """Parameters that each token passes."""


@dataclass(frozen=True)
class _Hardware(JsonObject):
    """The nodes that train it."""

    instance_type: str
    nodes: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class _Memory(MemoryItems):
    """1e9 bytes per accelerator at the peak of a step."""

    peak: float
    """The sum of all above."""
    capacity: float
    headroom: float
    """Below zero where the run does not fit."""
    error: float
    """What the run may need beyond the peak: nine of ten published runs need no more."""


@dataclass(frozen=True)
class _Speed(JsonObject):
    """The time of a step and its parts."""

    step_s: float
    tokens_per_s_per_gpu: float
    low: float
    high: float
    """Nine of ten published runs have tokens/s per GPU from `low` to `high`."""
    model_flops_utilization: float
    hardware_flops_utilization: float
    parts: dict[str, float]
    """Seconds of a step."""
    bound_by: str


@dataclass(frozen=True)
class _Cost(JsonObject):
    """Time, dollars and energy of the whole run, failures included."""

    hours: float
    failures: Failures
    usd: dict[str, float]
    """By item; empty without a public price."""
    kwh: float
    price_note: str
    total_usd: float | None


@dataclass(frozen=True)
class PlanDocument(JsonObject):
    """The document of `podwright plan --json` for one cluster."""

    model: _Model
    cluster: _Hardware
    layout: Layout
    memory_gb: _Memory
    fits: bool
    largest_micro_batch: int
    """The largest that leaves room for `memory_gb.error`; 0 where none does."""
    speed: _Speed
    tokens: float | None
    cost: _Cost | None
    """null unless tokens were given."""
    checkpoint_freq_steps: int | None
    memory_checkpoints: TierDocument
    predicted_loss_nats_per_token: float | None
    command: list[str] | None
    """Words of the command that runs it; null if there are obstacles."""
    obstacles: list[str]


def plan_document(plan: Plan, command: Sequence[str], obstacles: Sequence[str]) -> PlanDocument:
    """Return the document of a plan, of the command that runs it, and of the reasons why nothing does."""
    memory = plan.memory
    return PlanDocument.of(
        plan,
        model=_Model.of(plan.model),
        cluster=_Hardware.of(plan.hardware, instance_type=plan.hardware.instance.name),
        memory_gb=_Memory.of(
            memory,
            peak=memory.peak_gb,
            capacity=memory.capacity_gb,
            headroom=memory.headroom_gb,
            error=memory.error_gb,
        ),
        speed=_Speed.of(plan.speed),
        cost=_Cost.of(plan.cost) if plan.cost else None,
        checkpoint_freq_steps=plan.checkpoint_steps(),
        memory_checkpoints=plan.memory_tier.document(),
        predicted_loss_nats_per_token=plan.loss,
        command=None if obstacles else list(command),
        obstacles=list(obstacles),
    )
