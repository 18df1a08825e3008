"""Predict an accelerator's memory at the peak of a step, item by item, in 1e9 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from podwright.planning.accelerator import Accelerator
from podwright.planning.calibration import Calibration, calibration
from podwright.planning.layout import ENDS, RECOMPUTES, Layout, Recompute
from podwright.planning.model import Model
from podwright.planning.software import SHARDINGS, Software
from podwright.planning.units import GB
from podwright_training.config.parallel_dims import blocks_of_stage

NF4_BYTES = 0.5625  # 4 bits and a scale of 8 bits per 64 weights, doubly quantised (arXiv:2305.14314)
EIGHT_BIT_BYTES = 2 + 2 * 4 / 256  # two moments of a byte, a scale in fp32 per block of 256 (arXiv:2110.02861)
LORA_RANK = 8
END_GRADIENT_BYTES = 2 + 4  # Per parameter: its gradient in bf16, and in fp32 for the reduction.
KEPT_AT_ENDS = 2  # hidden states that embedding, last norm and head keep; one less if the head is divided


@dataclass(frozen=True, kw_only=True)
class Memory:
    """GB per accelerator. With ``headroom_gb`` below zero the run may end out of memory.

    ``more_gaps_gb`` is what the allocator's gaps take beyond ``fragmentation``, their mean, in the worst published run.
    ``error_gb`` is what a run may need more than predicted: nine of ten published runs need no more.
    """

    capacity_gb: float
    more_gaps_gb: float
    error_gb: float
    parameters: float
    gradients: float
    master_weights: float
    optimizer: float
    gathered_parameters: float
    activations: float
    logits: float
    communication_and_context: float
    fragmentation: float

    @property
    def peak_gb(self) -> float:
        """The sum of all items."""
        return sum(self.items().values())

    def reading_gb(self, software: Software) -> float:
        """Return the peak as the software reports it: without gaps and context, if it counts tensors alone."""
        gaps = self.fragmentation + self.communication_and_context
        return self.peak_gb - (gaps if software.reads == "allocated" else 0.0)

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

    def items(self) -> dict[str, float]:
        """Return the items by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if not item.name.endswith("_gb")}


def error_share() -> float:
    """Return the share of a predicted peak by which nine of ten published runs need at most more or less."""
    return calibration()("memory_error")


def memory(
    model: Model,
    layout: Layout,
    accelerator: Accelerator,
    software: Software,
    *,
    constants: Calibration | None = None,
) -> Memory:
    """Predict the memory of the first pipeline stage, which keeps the most micro-batches in flight.

    States (arXiv:1910.02054): bytes per parameter times the parameters of a tensor and pipeline slice, over the ranks
    that shard them. Activations (arXiv:2205.05198): what each block keeps for its backward pass, times blocks and
    micro-batches in flight.
    """
    return _Sizing(model, layout, accelerator, software, constants or calibration()).memory()


def largest_micro_batch(
    model: Model,
    layout: Layout,
    accelerator: Accelerator,
    software: Software,
    *,
    at_most: int = 4096,
    surely: bool = True,
) -> int:
    """Return the largest micro-batch that fits, by default surely, or 0 if one sequence does not."""

    def fits(micro_batch: int) -> bool:
        needed = memory(model, replace(layout, micro_batch=micro_batch), accelerator, software)
        return needed.fits_surely if surely else needed.fits

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
    surely: bool = True,
) -> Layout:
    """Return the layout with the least recomputation that fits, by default surely, or with full recomputation."""
    for recompute in choices:
        candidate = replace(layout, recompute=recompute)
        needed = memory(model, candidate, accelerator, software)
        if needed.fits_surely if surely else needed.fits:
            return candidate
    return replace(layout, recompute="full")


class _Sizing:
    def __init__(
        self, model: Model, layout: Layout, accelerator: Accelerator, software: Software, constants: Calibration
    ) -> None:
        self.model, self.layout = model, layout
        self.accelerator, self.software, self.constants = accelerator, software, constants
        self.tokens = layout.tokens_per_micro_batch
        # With sequence parallelism the parts outside attention and MLP are split like those inside.
        self.split = layout.tensor if software.sequence_parallel else 1

    def memory(self) -> Memory:
        states = self._states()
        items = max(
            ({**states, **parts} for parts in self._candidates()), key=lambda candidate: sum(candidate.values())
        )
        total = sum(items.values())
        on_device = self.software.reads == "device"
        context = self.software.reserve_gb if on_device else 0.3
        peak_gb = total / GB * (1 + self._fragmentation()) + context
        return Memory(
            error_gb=peak_gb * self.constants("memory_error"),
            capacity_gb=self.accelerator.memory_gb - (0.0 if on_device else self.constants("context_gb")),
            more_gaps_gb=total / GB * self._more_gaps(),
            **{name: size / GB for name, size in items.items()},
            communication_and_context=context,
            fragmentation=total / GB * self._fragmentation(),
        )

    def _fragmentation(self) -> float:
        """Return the share that the allocator reserves in addition to tensors.

        Interleaved pipelines free activations in another order than they make them, so that segments that cannot grow
        keep gaps.
        """
        if self._leaves_gaps():
            return self.constants("fragmentation", "interleaved")
        reading = "device" if self.software.reads == "device" else "allocator"
        return self.constants("fragmentation", reading, self.software.name)

    def _leaves_gaps(self) -> bool:
        return self.layout.virtual_stages > 1 and not self.software.expandable_segments

    def _more_gaps(self) -> float:
        if not self._leaves_gaps():
            return 0.0
        return self.constants("fragmentation", "interleaved", "worst") - self._fragmentation()

    def _candidates(self) -> list[dict[str, float]]:
        """Return the memory in addition to the states at each moment when a step may have its peak.

        A loss in chunks has its gradients before the backward pass begins, so logits and the block that is worked on
        are not there at once: counted with ``podwright-train dry-run``.
        """
        layout = self.layout
        if layout.splits_backward:
            return list(self._split_candidates())
        activations, working = self._kept_bytes(), self._working_bytes()
        if self._keeps_weights():
            return self._gathered_once_candidates(activations, working)
        by_chunks = layout.loss_chunk_tokens or layout.pipeline > 1
        if not by_chunks or layout.sharding != "full" or layout.training != "full":
            gathered = self._gathered_blocks() + self._gathered_ends()
            logits = self._logits() if layout.pipeline == 1 else 0.0
            return [{"gathered_parameters": gathered, "activations": activations + working, "logits": logits}]
        shares = self._vocabulary_shares()
        end = self.model.embedding / shares
        activations += (KEPT_AT_ENDS - (shares > 1)) * self.tokens * self._kept_input()
        one_micro_batch = (
            activations / self._in_flight()
        )  # The last stage of a pipeline, which has the loss, holds one.
        root = 2.0 * end if self.model.tied else 0.0  # a tied embedding stays gathered
        return [
            # the head, and the buffer it came in
            {
                "gathered_parameters": 2 * 2.0 * end if layout.sharding_ranks > 1 else 0.0,
                "activations": one_micro_batch,
                "logits": self._logits(),
            },
            *self._block_candidates(activations, working, root),
            {
                "gathered_parameters": root,
                "activations": activations - one_micro_batch,
                "logits": END_GRADIENT_BYTES * end,
            },
        ]

    def _gathered_once_candidates(self, activations: float, working: float) -> list[dict[str, float]]:
        """Return the memory of the first stage, of the last one with the loss, and while the embedding is reduced.

        A gradient that is reduced after each micro-batch is there in fp32 until the next one is complete: in a
        pipeline, at first the embedding's, of the micro-batch before, and one of each other stage of the rank. Then a
        block's own is there too, in bf16. The loss has the buffer that the head came in, or a tied one's is reduced in.
        """
        layout, shares = self.layout, self._vocabulary_shares()
        weights, one_micro_batch = 2.0 * sum(self._local_parameters()), activations / self._in_flight()
        end, block = self.model.embedding / shares, self._block_parameters()
        reduced = complete = head = other_micro_batches = 0.0
        if not layout.whole_gradients:
            stages = 4.0 * block * (layout.virtual_stages - 1)
            reduced = 4.0 * (max(end, block) if layout.pipeline > 1 else block) + stages
            complete = END_GRADIENT_BYTES * block + stages
            head = stages or (4.0 if self.model.tied else 2.0) * end
            other_micro_batches = activations - one_micro_batch
        candidates = [
            {"gathered_parameters": weights + reduced, "activations": activations + working, "logits": 0.0},
            {"gathered_parameters": weights + complete, "activations": activations, "logits": 0.0},
        ]
        if not layout.loss_chunk_tokens:
            loss = {"gathered_parameters": weights, "activations": one_micro_batch + working, "logits": self._logits()}
            return [*candidates, loss]
        one_micro_batch += (KEPT_AT_ENDS - (shares > 1)) * self.tokens * self._kept_input()
        return [
            *candidates,
            {"gathered_parameters": weights + head, "activations": one_micro_batch, "logits": self._logits()},
            {"gathered_parameters": weights, "activations": other_micro_batches, "logits": END_GRADIENT_BYTES * end},
        ]

    def _split_candidates(self) -> Iterator[dict[str, float]]:
        """Yield the memory of each rank of a pipeline that splits the backward pass, before and in each pass.

        What a block kept or recomputed for the gradient of its input stays until that of its weights is complete, with
        the gradients of its matrices' results (``stage_backward_input`` of torch). The first stage has no such gradient
        to compute: its whole backward pass comes with its weights. All weights stay gathered. Ranks without embedding
        or head have less of the states: often it is one of those that keeps most.
        """
        layout = self.layout
        last_stage = layout.pipeline * layout.virtual_stages - 1
        sizes = [self._stage_bytes(stage, last_stage) for stage in range(last_stage + 1)]
        weights, at_work, logits = 2.0 * sum(self._local_parameters()), self._working_bytes(), self._logits()
        for rank in range(layout.pipeline):
            lacking = self._lacks(rank)
            states = {**self._states(lacking), "gathered_parameters": weights - 2.0 * lacking}
            activations = peak = peak_with_loss = 0.0
            for kind, stage, _ in layout.actions(rank):
                forward, split = sizes[stage]
                activations += {"forward": forward, "input": split - forward, "weight": -split}[kind]
                if kind == "forward" and stage == last_stage:
                    peak_with_loss = max(peak_with_loss, activations)
                peak = max(peak, activations)
            yield {**states, "activations": peak + at_work, "logits": 0.0}
            if peak_with_loss:
                yield {**states, "activations": peak_with_loss, "logits": logits}

    def _lacks(self, rank: int) -> float:
        """Return the parameters of embedding and head that the first rank of a pipeline has, and this one lacks."""
        if self.layout.schedule == "zero_bubble_v":
            ends = 0 if rank == 0 else 1 if self.model.tied else 2
        else:
            ends = 0 if rank in (0, self.layout.pipeline - 1) else 1
        return ends * self.model.embedding / self.layout.tensor

    def _stage_bytes(self, stage: int, last_stage: int) -> tuple[float, float]:
        """Return a stage's bytes of a micro-batch after its forward pass, and after the gradient of its input."""
        blocks = len(blocks_of_stage(stage, last_stage + 1, self.model.layers))
        ends = 0.0
        if (
            stage == last_stage and self.layout.loss_chunk_tokens
        ):  # the gradient of the head, which a loss in chunks has
            ends = 2.0 * self.model.embedding / self._vocabulary_shares()
        activations = blocks * self._kept_in_pass() + ends
        return activations, blocks * self._kept_when_split() + ends if stage else activations

    def _kept_in_pass(self) -> float:
        """Return the bytes that a block keeps of a micro-batch from its forward pass on."""
        return self._kept_bytes() / self._in_flight() * self.layout.pipeline / self.model.layers

    def _kept_when_split(self) -> float:
        """Return the bytes that a block keeps between the gradients of its input and of its weights."""
        model, layout = self.model, self.layout
        block_bytes = sum(count * self._whole(kind) for kind, count in self._kinds().items()) / model.layers
        results = (model.heads + 2 * model.kv_heads) * model.head_dim + model.matrices_of_mlp * model.ffn
        return self.tokens * (block_bytes + 2.0 * results / layout.tensor)

    def _block_candidates(self, activations: float, working: float, root: float) -> list[dict[str, float]]:
        """Return the memory while a block is computed, and when its gradient is complete.

        The gradient of the block before is reduced meanwhile, in fp32; the block's own is in bf16. Experts are gathered
        by themselves, and reduced when the next block's are not yet worked on.
        """
        mixture = bool(self.model.expert_blocks)
        at_work, complete = (self._gathered_blocks(gradient=size) + root for size in ((0, 4) if mixture else (4, 6)))
        return [
            {"gathered_parameters": at_work, "activations": activations + working, "logits": 0.0},
            {"gathered_parameters": complete, "activations": activations, "logits": 0.0},
        ]

    def _vocabulary_shares(self) -> int:
        """Return the ranks of tensor parallelism that divide embedding and head by words."""
        model, tensor = self.model, self.layout.tensor
        return 1 if model.tied or model.vocab % tensor else tensor

    # ---- states ------------------------------------------------------------------------------------

    def _states(self, lacking: float = 0.0) -> dict[str, float]:
        """Size the states of the first rank, or of one that lacks so many of its parameters."""
        software, layout = self.software, self.layout
        if layout.training != "full":
            return self._adapter_states()
        optimizer, master = software.optimizer_bytes * self._moments(), software.master_bytes
        if layout.offload_optimizer:
            optimizer = master = 0.0
        level = SHARDINGS.index(layout.sharding)
        return {
            "parameters": self._sharded(software.weight_bytes, lacking, sharded=level >= SHARDINGS.index("full")),
            "gradients": self._sharded(software.gradient_bytes, lacking, sharded=self._shards_gradients(level)),
            "master_weights": self._sharded(master, lacking, sharded=level >= SHARDINGS.index("optimizer")),
            "optimizer": self._sharded(optimizer, lacking, sharded=level >= SHARDINGS.index("optimizer")),
        }

    def _shards_gradients(self, level: int) -> bool:
        layout = self.layout
        kept_whole = layout.whole_gradients and (layout.micro_batches > 1 or layout.pipeline > 1)
        return level >= SHARDINGS.index("gradients") and not kept_whole

    def _keeps_weights(self) -> bool:
        """True where FSDP gathers weights once: for a micro-batch, or in a pipeline for all of a step."""
        layout = self.layout
        if layout.sharding != "full" or layout.training != "full":
            return False
        return layout.reshard == "never" or (layout.reshard == "auto" and layout.pipeline > 1)

    def _moments(self) -> float:
        """Return the optimizer's states relative to AdamW's: Muon has one per block matrix, 8-bit AdamW a byte each."""
        if self.layout.optimizer == "adamw_8bit":
            return EIGHT_BIT_BYTES / self.software.optimizer_bytes
        matrices = self.model.block_matrices / self.model.parameters
        return 1 - matrices / 2 if self.layout.optimizer == "muon" else 1.0

    def _adapter_states(self) -> dict[str, float]:
        """Size frozen weights (4 bits for QLoRA, except the embedding) and LoRA adapters."""
        model = self.model
        shard = self.layout.tensor * self.layout.pipeline
        if self.layout.sharding == "full":
            shard *= self.layout.sharding_ranks
        quantised = model.parameters - model.embedding - model.vectors if self.layout.training == "qlora" else 0
        weights = (model.parameters - quantised) * 2.0 + quantised * NF4_BYTES
        adapters = 4 * LORA_RANK * model.hidden_size * model.attention_blocks / self.layout.pipeline
        return {
            "parameters": weights / shard,
            "gradients": 2.0 * adapters,
            "master_weights": 0.0,
            "optimizer": 4.0 * adapters,
        }

    def _sharded(self, width: float, lacking: float, *, sharded: bool) -> float:
        dense, experts = self._local_parameters()
        dense -= lacking
        ranks = self.layout.sharding_ranks
        if not sharded:
            return width * (dense + experts)
        return width * (dense / ranks + experts / max(1, ranks // self.layout.expert))

    def _local_parameters(self) -> tuple[float, float]:
        """Return this rank's parameters before data-parallel sharding: dense ones, and those of experts."""
        model, layout = self.model, self.layout
        share = self._blocks_of_first_stage() / model.layers
        dense = (model.block_matrices - model.expert_parameters) * share / layout.tensor + model.vectors * share
        apart = layout.pipeline > 1 and layout.schedule != "zero_bubble_v"  # in a V the first rank has both
        ends = 1 if apart or model.tied else 2
        dense += ends * model.embedding / layout.tensor
        return dense, model.expert_parameters * share / layout.expert

    def _blocks_of_first_stage(self) -> int:
        """Return its blocks; one less where embedding and head count as blocks so that all stages are even."""
        layers, stages = self.model.layers, self.layout.pipeline
        if stages > 1 and layers % stages and (layers + ENDS) % stages == 0:
            return max(1, (layers + ENDS) // stages - 1)
        return -(-layers // stages)

    def _gathered_blocks(self, *, gradient: float = 2.0) -> float:
        """Size the blocks that full sharding gathers, two, and the gradient of one, of so many bytes a parameter."""
        layout, model = self.layout, self.model
        if not self._gathers():
            return 0.0
        if layout.sharding == "gradients":
            return 2.0 * self._block_parameters() * max(1, model.layers)
        return (2 * 2.0 + gradient) * self._block_parameters()

    def _block_parameters(self) -> float:
        """Return the parameters of a block's matrices that a rank gathers."""
        model, layout = self.model, self.layout
        matrices = model.block_matrices - model.expert_parameters * (1 - 1 / layout.expert)
        return matrices / max(1, model.layers) / layout.tensor

    def _gathered_ends(self) -> float:
        """Size embedding or head, with the gradient."""
        return 2 * 2.0 * self.model.embedding / self.layout.tensor if self._gathers() else 0.0

    def _gathers(self) -> bool:
        layout = self.layout
        return layout.training == "full" and layout.sharding in ("full", "gradients") and layout.sharding_ranks > 1

    # ---- activations -------------------------------------------------------------------------------

    def _kept_bytes(self) -> float:
        """Return the bytes that blocks keep for the backward pass."""
        layout, model = self.layout, self.model
        bytes_per_token = sum(count * self._kept(kind) for kind, count in self._kinds().items()) / layout.pipeline
        bytes_per_token *= self.constants("kept", self.software.name) * (1 - layout.offloaded_layers / model.layers)
        if layout.offload_activations:
            bytes_per_token = 2.0 * self._kept_input()
        repeated = layout.recompute in ("full", "selective")
        blocks_with_scores = 0.0 if repeated else model.attention_blocks / layout.pipeline * self._in_flight()
        return self.tokens * bytes_per_token * self._in_flight() + self._scores() * blocks_with_scores

    def _working_bytes(self) -> float:
        """Return the bytes that the block being computed adds."""
        bytes_by_kind = {kind: self._whole(kind) for kind, count in self._kinds().items() if count}
        if self.layout.recompute == "none":  # only gradients come on top of what is kept
            working = max(bytes_by_kind.values()) / 2
        else:
            working = max(size + self._gate_gradients(kind) for kind, size in bytes_by_kind.items())
        return self.tokens * working * self.constants("working_set") + self._scores()

    def _kinds(self) -> dict[str, int]:
        model = self.model
        return {
            "attention": model.attention_blocks,
            "mlp": model.mlp_blocks,
            "mamba": model.mamba_layers,
            "experts": model.expert_blocks,
        }

    def _in_flight(self) -> float:
        """Return the micro-batches that the first stage keeps in flight.

        1F1B keeps as many as there are stages, interleaved 1F1B a few more (arXiv:2104.04473).
        """
        layout = self.layout
        if layout.pipeline == 1:
            return 1.0
        extra = (layout.pipeline - 1) / layout.virtual_stages if layout.virtual_stages > 1 else 0.0
        return min(float(layout.micro_batches), layout.pipeline + extra)

    def _kept(self, kind: str) -> float:
        """Return the bytes per token that a part keeps for its backward pass."""
        recompute = self.layout.recompute
        half_input = self._kept_input() / 2 if not self.model.hybrid else self._kept_input()
        if recompute == "full" or (recompute == "mlp" and kind in ("mlp", "experts")):
            return half_input
        if recompute == "selective":
            return self._whole(kind) * self.constants("selective_kept", self.software.name)
        return self._whole(kind)

    def _kept_input(self) -> float:
        return 2.0 * self.model.hidden_size / self.split

    def _whole(self, kind: str) -> float:
        """Return the bytes per token of a part's activations.

        Inputs of linear layers have the products' precision if the software keeps them so, the rest is bf16, and eager
        norms are fp32.
        """
        model, layout = self.model, self.layout
        fused = self.software.compiled
        linear = {"bf16": 2.0, "fp32": 4.0}.get(layout.precision) or self.constants("fp8_kept", self.software.name)
        norms = (
            (2.0 + linear if fused else self.constants("norm_bytes", self.software.name))
            * model.hidden_size
            / self.split
        )
        quantised = 4.0 if layout.training == "qlora" else 0.0
        if kind == "attention":
            heads = (model.heads + 2 * model.kv_heads) * model.head_dim
            width = model.heads * (model.value_dim or model.head_dim)
            copy = linear if linear < 2.0 else 0.0  # noqa: PLR2004 - in bf16 it is the output itself
            output = 0.0 if copy and self._repeats_core() else 2.0
            attention_bytes = 2.0 * heads + (output + copy) * width
            if self.constants("rotated_copies", self.software.name):
                attention_bytes += 2.0 * 3 * width
            return (
                norms * model.norm_vectors_kept
                + attention_bytes / layout.tensor
                + quantised * (model.hidden_size + width)
            )
        if kind == "mamba":
            return norms + (8.0 if fused else 12.0) * model.mamba_inner / layout.tensor
        if kind == "mlp":
            return (
                norms * model.norm_vectors_kept
                + self._ffn(model.ffn, linear) / layout.tensor
                + quantised * (model.hidden_size + model.ffn)
            )
        of_experts = linear if self.constants("fp8_experts", self.software.name) else max(linear, 2.0)
        routed = model.experts_per_token * (
            of_experts * (model.latent or model.hidden_size) + self._ffn(model.expert_ffn, of_experts)
        )
        if not fused:  # the experts' results, for the gradients of the weights that mix them
            routed += 2.0 * model.experts_per_token * model.hidden_size
        return norms + (routed + self._ffn(model.shared_ffn, linear)) / layout.tensor

    def _repeats_core(self) -> bool:
        """True if only the core of attention is repeated: its output is then kept in the product's precision alone."""
        return self.layout.recompute == "selective" and not self.constants("selective_repeats", self.software.name)

    def _ffn(self, width: int, linear: float) -> float:
        """Return the bytes of the activation function's inputs (two if gated) and output."""
        model = self.model
        if self.software.compiled:
            return (2.0 * (model.matrices_of_mlp - 1) + linear) * width
        return (8.0 if model.gated else 4.0) * width

    def _gate_gradients(self, kind: str) -> float:
        """Return the bytes per token by which a gated activation's gradients exceed the products that they replace.

        Without fusion, gate, up, the activation and the gradients of it, of up and of their product are there at once:
        six, beside the four that ``_ffn`` counts. Counted with ``podwright-train dry-run``.
        """
        model = self.model
        widths = {"mlp": model.ffn, "experts": model.experts_per_token * model.expert_ffn + model.shared_ffn}
        if self.software.compiled or not model.gated:
            return 0.0
        return 2 * 2.0 * widths.get(kind, 0) / self.layout.tensor

    def _scores(self) -> float:
        """Size the scores of one block's attention that is not fused.

        Softmax, mask and dropout take 5 bytes a score; with a soft cap, tanh, masked scores, softmax in fp32 and in
        bf16 take 12 (litgpt/model.py).
        """
        capped = self.model.softcapped and self.software.name == "litgpt-finetune"
        if self.software.flash_attention and not capped:
            return 0.0
        layout = self.layout
        return (
            (12.0 if capped else 5.0)
            * layout.micro_batch
            * self.model.heads
            * layout.sequence**2
            / layout.tensor
            / layout.context
        )

    def _logits(self) -> float:
        """Size logits (bf16), probabilities and gradients (fp32), which the last pipeline stage has."""
        layout = self.layout
        tokens = self.tokens / layout.tensor
        if not layout.loss_chunk_tokens:
            return self.constants("logit_bytes", self.software.name) * tokens * self.model.vocab
        width = self.constants("chunk_logit_bytes", self.software.name)
        # Gradients of the head and of the hidden states exist at the same time; ranks that divide the head gather the
        # hidden states of all their tokens for it.
        shares = self._vocabulary_shares()
        gradients = 4.0 * self.model.embedding / shares + 2.0 * tokens * self.model.hidden_size
        if shares > 1:
            gradients += 2 * 2.0 * self.tokens * self.model.hidden_size
        return width * min(tokens, layout.loss_chunk_tokens) * self.model.vocab + gradients
