"""Predict the memory of published runs, with states and activations that podwright-train does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from podwright.planning.accelerator import Accelerator
from podwright.planning.activations import Activations, BlockPart
from podwright.planning.calibration import Calibration
from podwright.planning.gathered_weights import GatheredWeights
from podwright.planning.memory import Allocator, Memory, first_fitting, largest_fitting, on_accelerator
from podwright.planning.model import Model
from podwright.planning.states import StateBytes, States
from podwright.planning.step_peak import StepPeak
from published.constants import constants as all_constants
from published.layout import RECOMPUTES, PublishedLayout, PublishedRecompute
from published.software import PublishedSoftware

# 4 bits, and a scale of 32 bits per block of 64 weights: arXiv:2305.14314, without double quantization.
NF4_BYTES = 0.5625
LORA_RANK = 8


def memory(
    model: Model,
    layout: PublishedLayout,
    accelerator: Accelerator,
    software: PublishedSoftware,
    *,
    constants: Calibration | None = None,
) -> Memory:
    """Predict the memory of the first pipeline stage, as ``podwright.planning.memory.memory`` does."""
    values = constants or all_constants()
    peak = StepPeak(
        PublishedStates(model, layout, software),
        PublishedWeights(model, layout),
        PublishedActivations(model, layout, software, values),
    )
    return on_accelerator(peak.highest(), accelerator, Allocator(layout, software, values))


def reading_gb(needed: Memory, software: PublishedSoftware) -> float:
    """Return the peak as the software reports it: without gaps and context, if it counts tensors alone."""
    gaps = needed.fragmentation + needed.communication_and_context
    return needed.peak_gb - (gaps if software.reads == "allocated" else 0.0)


def largest_micro_batch(
    model: Model, layout: PublishedLayout, accelerator: Accelerator, software: PublishedSoftware, *, at_most: int
) -> int:
    """Return the largest micro-batch that fits; a published run may have had nothing to spare."""
    return largest_fitting(
        lambda size: memory(model, replace(layout, micro_batch=size), accelerator, software).fits, at_most=at_most
    )


def least_recomputation(
    model: Model,
    layout: PublishedLayout,
    accelerator: Accelerator,
    software: PublishedSoftware,
    *,
    choices: Sequence[PublishedRecompute] = RECOMPUTES,
) -> PublishedLayout:
    """Return the layout with the least recomputation that fits, or with full recomputation."""
    return first_fitting(layout, choices, lambda candidate: memory(model, candidate, accelerator, software).fits)


class PublishedStates(States):
    """States of full training, or frozen weights with the states of LoRA's adapters."""

    layout: PublishedLayout

    def of_rank(self, missing_parameters: float = 0.0) -> StateBytes:
        """Return the states of a rank."""
        if self.layout.training == "full":
            return super().of_rank(missing_parameters)
        return self._with_adapters()

    def _with_adapters(self) -> StateBytes:
        """Size frozen weights (4 bits for QLoRA, except the embedding) and LoRA adapters."""
        model = self.model
        shards = self.layout.tensor * self.layout.pipeline
        if self.layout.sharding == "full":
            shards *= self.layout.sharding_ranks
        quantised = model.parameters - model.embedding - model.vectors if self.layout.training == "qlora" else 0
        weights = (model.parameters - quantised) * 2.0 + quantised * NF4_BYTES
        adapters = 4 * LORA_RANK * model.hidden_size * model.attention_blocks / self.layout.pipeline
        return StateBytes(
            parameters=weights / shards, gradients=2.0 * adapters, master_weights=0.0, optimizer=4.0 * adapters
        )


class PublishedWeights(GatheredWeights):
    """Weights that FSDP gathers; frozen ones are counted as they are."""

    layout: PublishedLayout

    @property
    def fully_sharded(self) -> bool:
        """True if ranks share all states of full training."""
        return super().fully_sharded and self.layout.training == "full"

    @property
    def gathers(self) -> bool:
        """True if ranks gather the weights of one block after another."""
        return super().gathers and self.layout.training == "full"


class PublishedActivations(Activations):
    """Activations with scores that are not fused, and with recomputation and offloading as Megatron has them."""

    layout: PublishedLayout
    software: PublishedSoftware

    @property
    def sequence_shards(self) -> int:
        """Ranks that split the parts outside attention and MLP among them."""
        return self.software.sequence_shards(self.layout.tensor)

    def kept_bytes(self) -> float:
        """Return the bytes that the blocks of the first stage keep for the backward pass."""
        layout, model = self.layout, self.model
        share = self.constants("kept", self.software.name) * (1 - layout.offloaded_layers / model.layers)
        repeats_scores = layout.recompute in ("full", "selective")
        blocks = 0.0 if repeats_scores else model.attention_blocks / layout.pipeline * self.micro_batches_in_flight
        return super().kept_bytes() * share + self._score_bytes() * blocks

    def working_bytes(self) -> float:
        """Return the bytes that the block being computed adds."""
        return super().working_bytes() + self._score_bytes()

    def _repeats(self, part: BlockPart) -> bool:
        repeats_mlp = self.layout.recompute == "mlp" and part in ("mlp", "experts")
        return super()._repeats(part) or repeats_mlp

    def _repeats_only_core(self) -> bool:
        return super()._repeats_only_core() and not self.constants("selective_repeats", self.software.name)

    def _whole(self, part: BlockPart) -> float:
        model = self.model
        width = {"attention": model.heads * (model.value_dim or model.head_dim), "mlp": model.ffn}.get(part)
        quantised = 4.0 * (model.hidden_size + width) if width and self.layout.training == "qlora" else 0.0
        return super()._whole(part) + quantised

    def _attention_bytes(self, linear: float) -> float:
        model = self.model
        copies = 3 * model.heads * (model.value_dim or model.head_dim)
        rotated = 2.0 * copies if self.constants("rotated_copies", self.software.name) else 0.0
        return super()._attention_bytes(linear) + rotated

    def _score_bytes(self) -> float:
        """Size the scores of one block's attention that is not fused.

        Softmax, mask and dropout take 5 bytes a score; with a soft cap, tanh, masked scores, softmax in fp32 and in
        bf16 take 12 (litgpt/model.py). PyTorch's fused attention lacks the soft cap of Gemma 2.
        """
        capped = self.model.name.startswith("gemma2") and self.software.name == "litgpt-finetune"
        if self.software.flash_attention and not capped:
            return 0.0
        layout = self.layout
        scores = layout.micro_batch * self.model.heads * layout.sequence**2
        return (12.0 if capped else 5.0) * scores / layout.tensor / layout.context
