"""Predict an accelerator's memory at the peak of a step, item by item, in 1e9 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from podwright.json_document import JsonObject
from podwright.planning.accelerator import Accelerator
from podwright.planning.activations import Activations
from podwright.planning.calibration import Calibration, calibration
from podwright.planning.gathered_weights import GatheredWeights
from podwright.planning.layout import RECOMPUTES, Layout, Recompute
from podwright.planning.model import Model
from podwright.planning.states import States
from podwright.planning.step_peak import StepMoment, StepPeak
from podwright.planning.trainer_software import Software
from podwright.planning.units import GB

LayoutT = TypeVar("LayoutT", bound=Layout)

CONTEXT_GB = 0.3  # Buffers outside the allocator, if its reports do not include the CUDA context.


@dataclass(frozen=True, kw_only=True)
class MemoryItems(JsonObject):
    """1e9 bytes per accelerator at the peak of a step."""

    parameters: float
    gradients: float
    master_weights: float
    optimizer: float
    gathered_parameters: float
    activations: float
    logits: float
    communication_and_context: float
    fragmentation: float

    def items(self) -> dict[str, float]:
        """Return the items by name."""
        return {item.name: getattr(self, item.name) for item in fields(MemoryItems)}


@dataclass(frozen=True, kw_only=True)
class Memory(MemoryItems):
    """GB per accelerator. With ``headroom_gb`` below zero the run may end out of memory.

    ``more_gaps_gb`` is what the allocator's gaps take beyond ``fragmentation``, their mean, in the worst published run.
    ``error_gb`` is what a run may need more than predicted: nine of ten published runs need no more.
    """

    capacity_gb: float
    more_gaps_gb: float
    error_gb: float

    @property
    def peak_gb(self) -> float:
        """The sum of all items."""
        return sum(self.items().values())

    @property
    def headroom_gb(self) -> float:
        """Capacity minus the peak and the gaps that may come on top of it."""
        return self.capacity_gb - self.peak_gb - self.more_gaps_gb

    @property
    def fits(self) -> bool:
        """True if the capacity holds the peak, even with the most gaps."""
        return self.headroom_gb >= 0

    @property
    def fits_surely(self) -> bool:
        """True if the capacity holds the peak plus the planner's error, as required of every proposal."""
        return self.capacity_gb - self.peak_gb >= max(self.more_gaps_gb, self.error_gb)


def error_share() -> float:
    """Return the share of a predicted peak by which nine of ten published runs need at most more or less."""
    return calibration()("memory_error")


def memory(model: Model, layout: Layout, accelerator: Accelerator, software: Software) -> Memory:
    """Predict the memory of the first pipeline stage, which keeps the most micro-batches in flight.

    States (arXiv:1910.02054): bytes per parameter times the parameters of a tensor and pipeline slice, over the ranks
    that shard them. Activations (arXiv:2205.05198): what each block keeps for its backward pass, times blocks and
    micro-batches in flight.
    """
    constants = calibration()
    peak = StepPeak(
        States(model, layout, software),
        GatheredWeights(model, layout),
        Activations(model, layout, software, constants),
    )
    return on_accelerator(peak.highest(), accelerator, Allocator(layout, software, constants))


@dataclass(frozen=True)
class Allocator:
    """PyTorch's allocator, which reserves more than the tensors take."""

    layout: Layout
    software: Software
    constants: Calibration

    @property
    def fragmentation(self) -> float:
        """The share that it reserves in addition to tensors.

        Interleaved pipelines free activations in another order than they make them, so that segments that cannot grow
        keep gaps.
        """
        if self._leaves_gaps:
            return self.constants("fragmentation", "interleaved")
        reading = "device" if self._reads_device else "allocator"
        return self.constants("fragmentation", reading, self.software.name)

    @property
    def more_gaps(self) -> float:
        """The share by which the gaps of the worst published run exceed ``fragmentation``."""
        if not self._leaves_gaps:
            return 0.0
        return self.constants("fragmentation", "interleaved", "worst") - self.fragmentation

    @property
    def context_gb(self) -> float:
        """Memory of context and libraries that a report of the peak includes."""
        return self.software.reserve_gb if self._reads_device else CONTEXT_GB

    @property
    def unreported_context_gb(self) -> float:
        """Memory of context and libraries that a report of the peak leaves out."""
        return 0.0 if self._reads_device else self.constants("context_gb")

    @property
    def _reads_device(self) -> bool:
        return self.software.reads == "device"

    @property
    def _leaves_gaps(self) -> bool:
        return self.layout.virtual_stages > 1 and not self.software.expandable_segments


def on_accelerator(peak: StepMoment, accelerator: Accelerator, allocator: Allocator) -> Memory:
    """Return the memory that an accelerator needs for a step with this peak."""
    tensors_gb = peak.total / GB
    peak_gb = tensors_gb * (1 + allocator.fragmentation) + allocator.context_gb
    return Memory(
        capacity_gb=accelerator.memory_gb - allocator.unreported_context_gb,
        more_gaps_gb=tensors_gb * allocator.more_gaps,
        error_gb=peak_gb * allocator.constants("memory_error"),
        **{name: size / GB for name, size in asdict(peak.states).items()},
        gathered_parameters=peak.gathered_parameters / GB,
        activations=peak.activations / GB,
        logits=peak.logits / GB,
        communication_and_context=allocator.context_gb,
        fragmentation=tensors_gb * allocator.fragmentation,
    )


def largest_micro_batch(
    model: Model, layout: Layout, accelerator: Accelerator, software: Software, *, at_most: int = 4096
) -> int:
    """Return the largest micro-batch that surely fits, or 0 if one sequence does not."""

    def fits(micro_batch: int) -> bool:
        return memory(model, replace(layout, micro_batch=micro_batch), accelerator, software).fits_surely

    return largest_fitting(fits, at_most=at_most)


def largest_fitting(fits: Callable[[int], bool], *, at_most: int) -> int:
    """Return the largest number for which ``fits`` is true, or 0 if it is false for 1."""
    if not fits(1):
        return 0
    low = 1
    while low < at_most and fits(low * 2):
        low *= 2
    step = low // 2
    while step:
        if low + step <= at_most and fits(low + step):
            low += step
        step //= 2
    return min(low, at_most)


def least_recomputation(
    model: Model,
    layout: Layout,
    accelerator: Accelerator,
    software: Software,
    *,
    choices: Sequence[Recompute] = RECOMPUTES,
) -> Layout:
    """Return the layout with the least recomputation that surely fits, or with full recomputation."""
    return first_fitting(layout, choices, lambda candidate: memory(model, candidate, accelerator, software).fits_surely)


def first_fitting(layout: LayoutT, choices: Sequence[Any], fits: Callable[[LayoutT], bool]) -> LayoutT:
    """Return the layout with the first recomputation with which it fits, or with full recomputation."""
    candidates = (replace(layout, recompute=recompute) for recompute in choices)
    return next(filter(fits, candidates), replace(layout, recompute="full"))
