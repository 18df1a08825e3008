"""Predict the speed of published runs, with kernels and schedules that podwright-train does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from podwright.planning.accelerator import Accelerator
from podwright.planning.blocks import Block, Blocks
from podwright.planning.calibration import Calibration
from podwright.planning.kernels import Kernels
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright.planning.throughput import Speed, Step
from published.constants import constants as all_constants
from published.layout import PublishedLayout
from published.software import PublishedSoftware


def speed(
    model: Model,
    layout: PublishedLayout,
    accelerator: Accelerator,
    software: PublishedSoftware,
    *,
    constants: Calibration | None = None,
) -> Speed:
    """Predict the time of a step, as ``podwright.planning.throughput.speed`` does."""
    return PublishedStep(model, layout, accelerator, software, constants or all_constants()).speed()


@dataclass(frozen=True, kw_only=True)
class PublishedKernels(Kernels):
    """Kernels of 4 bits, of frozen weights, and of attention that writes its scores."""

    element_bytes: ClassVar[Mapping[str, float]] = {**Kernels.element_bytes, "fp4": 0.5}

    frozen: bool = False  # Linear layers have no gradients of weights.

    def weight_gradient(self, rows: float, columns: float, depth: float, *, groups: float) -> float:
        """Time the gradient of a linear layer's weight, which frozen weights do not have."""
        return 0.0 if self.frozen else super().weight_gradient(rows, columns, depth, groups=groups)

    def plain_attention(self, *, batch_heads: float, sequence: float, head_dim: int) -> tuple[float, float]:
        """Time forward and backward of attention that writes all ``s * s`` scores.

        This is two batched products and the memory traffic of softmax and dropout.
        """
        scores = batch_heads * sequence * sequence
        share = 1.0 if head_dim % 8 == 0 else self.calibration("unaligned_heads")
        products = 4.0 * scores * head_dim / (self.sustained_flops * 0.6 * share)
        traffic = self.calibration("score_bytes") * scores / self.memory_bytes_s
        return products + traffic, 2 * (products + traffic)


@dataclass
class PublishedBlock(Block):
    """Seconds of a block, with the parts that Megatron repeats by themselves."""

    mlp: float = 0.0  # forward of MLP or experts
    repeated: float = 0.0  # forward of the small modules that are computed again


class PublishedBlocks(Blocks):
    """Times the blocks of a published run."""

    block_type = PublishedBlock
    quantised_precisions = ("fp8", "fp4")

    layout: PublishedLayout
    software: PublishedSoftware
    kernels: PublishedKernels

    def _mlp(self) -> Block:
        return _with_mlp(super()._mlp())

    def _experts(self) -> Block:
        return _with_mlp(super()._experts())

    def _up_projections(self, block: Block) -> None:
        before = block.forward
        super()._up_projections(block)
        self._repeat(block, "mla_up_proj", block.forward - before)

    def _attention_core(self) -> tuple[float, float]:
        if self.software.flash_attention:
            return super()._attention_core()
        model, layout = self.model, self.layout
        return self.kernels.plain_attention(
            batch_heads=layout.micro_batch * model.heads / layout.tensor / layout.context,
            sequence=layout.sequence,
            head_dim=model.head_dim,
        )

    def _expert_kernels(self) -> Kernels:
        kernels = super()._expert_kernels()
        if kernels.precision == "fp4":  # type: ignore[comparison-overlap] # It has no grouped products.
            return replace(kernels, precision="fp8")
        return kernels

    def _route(self, block: Block, width: int) -> None:
        super()._route(block, width)
        copies = self.tokens * self.model.experts_per_token / self.layout.tensor
        self._repeat(block, "moe_act", self.kernels.stream(copies * self._activation_elements() * 2.0))

    def _expert_passes(self) -> float:
        return self.constants("experts", *self._fused(), self.software.name)

    def _activation_elements(self) -> float:
        model = self.model
        elements = self._expert_passes() * 3 * model.expert_ffn
        if model.bias == "all":
            elements += self.constants("unfused_experts", *self._fused()) * model.expert_ffn
        return elements

    def _fused(self) -> tuple[str, ...]:
        return ("fused",) if self.software.graphs == "all" else ()

    def _hidden_share_of_dispatch(self) -> float:
        if self.software.overlaps_experts:
            return self.constants("overlap_data", self.software.name)
        return super()._hidden_share_of_dispatch()

    def _elementwise(self, block: Block, *, replicated: float, split: float) -> None:
        super()._elementwise(block, replicated=replicated, split=split)
        passes = self.constants("elementwise", self.software.name)
        norm = passes * self.tokens * 2 * self.model.hidden_size / self._sequence_shards() * 2.0  # read and written
        self._repeat(block, "layernorm", self.kernels.stream(norm))

    def _sequence_shards(self) -> int:
        return self.software.sequence_shards(self.layout.tensor)

    def _repeat(self, block: Block, module: str, forward: float) -> None:
        """Add the time of a module's forward pass if the layout repeats it."""
        if isinstance(block, PublishedBlock) and module in self.layout.repeated_modules:
            block.repeated += forward


def _with_mlp(block: Block) -> Block:
    if isinstance(block, PublishedBlock):
        block.mlp = block.forward
    return block


class PublishedStep(Step):
    """The time of a step of a published run."""

    blocks_type = PublishedBlocks

    layout: PublishedLayout
    software: PublishedSoftware

    def kernels_of(self, layout: Layout) -> Kernels:
        """Return the kernels of a layout on the accelerator."""
        return PublishedKernels(
            accelerator=self.accelerator,
            calibration=self.constants,
            precision=layout.precision,
            frozen=self._is_frozen(),
        )

    def _is_frozen(self) -> bool:
        return self.layout.training != "full"

    def _micro_batch(self) -> dict[str, float]:
        totals = super()._micro_batch()
        host_s = self.constants("block_ms", self.software.name) * 1e-3
        totals["waiting for the host"] += host_s * self.model.layers / self.layout.pipeline
        return totals

    def _recompute_time(self, block: Block) -> float:
        if self.layout.recompute == "selective":
            repeated = self.constants("selective_repeats", self.software.name)
            return repeated * (block.forward - block.attention) + (0.0 if repeated else block.attention)
        if isinstance(block, PublishedBlock) and self.layout.recompute in ("none", "mlp"):
            return block.repeated if self.layout.recompute == "none" else block.mlp
        return super()._recompute_time(block)

    def _recomputed_flops(self) -> float:
        if self.layout.recompute == "mlp":
            model = self.model
            return 2.0 * (model.active_block_matrices - model.attention_blocks * model.attention_matrices)
        return super()._recomputed_flops()

    def _host_time(self) -> float:
        return 0.0 if self.software.graphs == "all" else super()._host_time()

    def _launched_parts(self) -> tuple[str, ...]:
        kind, name = super()._launched_parts()
        return (kind, "parts", name) if self.software.graphs == "parts" else (kind, name)

    def _step_communication(self, micro_batch_s: float) -> float:
        return 0.0 if self._is_frozen() else super()._step_communication(micro_batch_s)

    def _optimizer(self) -> float:
        return 0.0 if self._is_frozen() else super()._optimizer()
