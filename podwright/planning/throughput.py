"""Predict the time of an optimizer step from first principles and measured efficiencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from podwright.planning.accelerator import Accelerator
from podwright.planning.blocks import Block, Blocks
from podwright.planning.calibration import Calibration, calibration
from podwright.planning.kernels import Kernels
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright.planning.trainer_software import Software
from podwright.planning.zero_bubble import Kind, duration_s

# Of compiled steps' tokens/s: 5,762 of 6,667 in torchtitan's table for eight H100
# (https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md), and 39,507 of 45,936 in
# ours for an H200 (docs/measured.md).
EAGER_SPEED = 0.86
COMPUTATION = ("products", "attention", "memory traffic", "recomputation")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The time of a step and its parts.

    ``parts`` are seconds per step that add up to ``step_s``. Nine of ten published runs have tokens/s/GPU between
    ``low`` and ``high``.
    """

    step_s: float
    tokens_per_s_per_gpu: float
    low: float
    high: float
    model_flops_utilization: float  # PaLM's: 6 N + 12 L a d s, nothing recomputed
    hardware_flops_utilization: float  # recomputation counted
    parts: dict[str, float]

    @property
    def bound_by(self) -> str:
        """The largest part."""
        return max(self.parts, key=lambda name: self.parts[name])


def speed(model: Model, layout: Layout, accelerator: Accelerator, software: Software) -> Speed:
    """Predict the time of a step.

    Time of a step = (micro-batches + (pipeline - 1) / virtual stages) x time of a micro-batch on one stage + exposed
    gradient communication + optimizer + a fixed part, all over (1 - share lost waiting for the slowest node).
    """
    return Step(model, layout, accelerator, software, calibration()).speed()


class Step:
    """One prediction. Each method is one part of the calculation."""

    blocks_type: ClassVar[type[Blocks]] = Blocks

    def __init__(
        self, model: Model, layout: Layout, accelerator: Accelerator, software: Software, constants: Calibration
    ) -> None:
        self.model, self.layout = model, layout
        self.accelerator, self.software, self.constants = accelerator, software, constants
        self.kernels = self.kernels_of(layout)
        self.blocks = self.blocks_type(model, layout, self.kernels, software, constants)
        self.tokens = layout.tokens_per_micro_batch

    def kernels_of(self, layout: Layout) -> Kernels:
        """Return the kernels of a layout on the accelerator."""
        return Kernels(accelerator=self.accelerator, calibration=self.constants, precision=layout.precision)

    def speed(self) -> Speed:
        """Return the time of the step and its parts."""
        layout, model = self.layout, self.model
        micro = self._micro_batch()
        parts = {name: time * layout.micro_batches for name, time in micro.items()}
        parts["pipeline bubble"] = self._bubble(sum(micro.values()))
        parts["gradient communication"] = self._step_communication(sum(micro.values()))
        parts["optimizer and fixed"] = self._optimizer() + self.constants("fixed_ms", self.software.name) * 1e-3
        busy = sum(parts.values())
        parts["waiting for the slowest"] = busy * self._jitter()
        step_s = sum(parts.values())
        rate = layout.tokens_per_step / step_s / layout.gpus
        peak = self.accelerator.peak_flops("bf16")
        flops = model.training_flops_per_token(layout.sequence, causal=False)
        spread = self.constants("spread", self.software.name)
        return Speed(
            step_s=step_s,
            tokens_per_s_per_gpu=rate,
            low=rate / (1 + spread),
            high=rate * (1 + spread),
            model_flops_utilization=rate * flops / peak,
            hardware_flops_utilization=rate * (flops + self._recomputed_flops()) / peak,
            parts={name: time for name, time in parts.items() if time > 0},
        )

    def _bubble(self, micro_batch_s: float) -> float:
        """Return the time that a rank of a pipeline waits for others, of micro-batches of that duration.

        Where the backward pass is split, each rank's passes are replayed in order: the three products of a matrix take
        the same time, and only one is of the weights.
        """
        layout = self.layout
        if not layout.splits_backward:
            return micro_batch_s * (layout.pipeline - 1) / layout.virtual_stages
        kinds = [(count / layout.pipeline, block) for count, block in self.blocks.kinds()]
        head, _ = self._head()
        products = sum(count * (block.forward + block.backward - block.core - block.traffic) for count, block in kinds)
        forward = sum(count * (block.forward + (block.tensor + block.expert) / 2) for count, block in kinds)
        seconds: dict[Kind, float] = {
            "forward": (forward + head / layout.pipeline / 3) / layout.virtual_stages,
            "weight": (products + head / layout.pipeline) / 3 / layout.virtual_stages,
        }
        seconds["input"] = micro_batch_s / layout.virtual_stages - sum(seconds.values())
        orders = [list(layout.actions(rank)) for rank in range(layout.pipeline)]
        took = duration_s(orders, seconds, stages=layout.pipeline * layout.virtual_stages)
        return max(0.0, took - micro_batch_s * layout.micro_batches)

    # ---- one micro-batch on one pipeline stage -----------------------------------------------------

    def _micro_batch(self) -> dict[str, float]:
        kinds = self.blocks.kinds()
        stages = self.layout.pipeline
        totals = {
            "products": 0.0,
            "attention": 0.0,
            "memory traffic": 0.0,
            "tensor communication": 0.0,
            "expert communication": 0.0,
        }
        idle = recompute = 0.0
        for count, block in kinds:
            share = count / stages * self._imbalance()
            compute = block.forward + block.backward
            totals["attention"] += share * block.core
            totals["memory traffic"] += share * block.traffic
            totals["products"] += share * (compute - block.core - block.traffic)
            totals["tensor communication"] += share * block.tensor
            totals["expert communication"] += share * block.expert
            again = self._recompute_time(block)
            recompute += share * again
            idle += share * max(0.0, self._host_time() - compute - again - block.tensor - block.expert)
        head_product, head_traffic = self._head()
        totals["products"] += (1 + self.model.extra_predictions) * head_product / stages
        totals["memory traffic"] += head_traffic / stages
        totals["recomputation"] = recompute
        totals["waiting for the host"] = idle
        totals["pipeline communication"] = self._pipeline_communication()
        totals["sharded parameters"] = self._sharded_parameters(kinds)
        computation_s = sum(totals[name] for name in COMPUTATION)
        totals["unfused operations"] = computation_s * (1 / EAGER_SPEED - 1) if self.layout.eager else 0.0
        totals["offloading"] = max(0.0, self._offloading() - sum(totals.values()))
        return totals

    def _pipeline_communication(self) -> float:
        """Return the time that a stage waits for hidden states and for their gradients.

        Interleaved schedules send beside the computation. Ranks of tensor parallelism send a share each
        (arXiv:2104.04473, section 4.1).
        """
        layout = self.layout
        if layout.pipeline == 1 or layout.virtual_stages > 1:
            return 0.0
        size = 2.0 * self.tokens * self.model.hidden_size / layout.tensor
        return 2 * self.kernels.send(size, stride=layout.gpus // layout.pipeline)

    def _head(self) -> tuple[float, float]:
        vocab = self.model.vocab / self.layout.tensor
        forward, backward = self.blocks.kernels_of("head").product_and_gradients(
            self.tokens, vocab, self.model.hidden_size
        )
        return forward + backward, self.kernels.stream(
            self.tokens * vocab * self.constants("loss_bytes", self.software.name)
        )

    def _recompute_time(self, block: Block) -> float:
        return {"none": 0.0, "selective": block.attention, "full": block.forward}[self.layout.recompute]

    def _recomputed_flops(self) -> float:
        model, sequence = self.model, self.layout.sequence
        attention = model.attention_flops_per_token(sequence, causal=False)
        return {
            "none": 0.0,
            "selective": attention,
            "full": 2.0 * model.active_block_matrices + attention,
        }[self.layout.recompute]

    def _host_time(self) -> float:
        """Return the host's time to launch a block's kernels, forward and backward."""
        model, name = self.model, self.software.name
        passes = 3.5 if self.layout.recompute == "full" else 2.5  # a backward launches one and a half times a forward
        launch_us = self.constants("launch_us", *self._launched_parts())
        if model.experts:
            # two products, and a cast for each
            kernels = 4 if self.blocks.kernels_of("experts").precision in self.blocks.quantised_precisions else 2
            launch_us += kernels * self.constants("expert_launch_us", name) * model.experts / self.layout.expert
        return passes * 1e-6 * launch_us

    def _launched_parts(self) -> tuple[str, ...]:
        """Return the name of the constant with the time to launch a block."""
        return ("moe" if self.model.experts else "dense", self.software.name)

    def _offloading(self) -> float:
        """Return the time to move the inputs of blocks to host memory and back, which overlaps with compute."""
        if not self.layout.offload_activations:
            return 0.0
        size = 2.0 * self.tokens * self.model.hidden_size * self.model.layers / self.layout.pipeline
        return 2 * size / (self.accelerator.host_gb_s * 1e9)

    def _imbalance(self) -> float:
        """Return the longest stage relative to the mean. Megatron can count embedding and head as layers."""
        layers, stages = self.model.layers, self.layout.pipeline * self.layout.virtual_stages
        if layers % stages == 0 or (layers + 2) % stages == 0:
            return 1.0
        return min(1.15, -(-layers // self.layout.pipeline) * self.layout.pipeline / layers)

    # ---- data parallelism ----------------------------------------------------------------------------

    def _sharded_parameters(self, kinds: list[tuple[float, Block]]) -> float:
        """Return the exposed time to gather and scatter fully sharded parameters, per micro-batch."""
        layout = self.layout
        ranks = layout.sharding_ranks
        if layout.sharding not in ("full", "gradients") or ranks == 1:
            return 0.0
        size = 2.0 * self.model.block_matrices / max(1, self.model.layers) / layout.tensor
        if self.model.experts and layout.expert > 1:
            size = (
                2.0
                * (self.model.block_matrices - self.model.expert_parameters * (1 - 1 / layout.expert))
                / self.model.layers
                / layout.tensor
            )
        forward, backward = self._gather_and_reduce(size)
        overlapped = self.constants("overlap_data", self.software.name)
        contention = self.constants("contention")
        exposed = 0.0
        for count, block in kinds:
            again = self._recompute_time(block)
            exposed += count * max(contention * forward, forward - overlapped * block.forward)
            exposed += count * max(contention * backward, backward - overlapped * (block.backward + again))
        return exposed / layout.pipeline

    def _gather_and_reduce(self, size: float) -> tuple[float, float]:
        """Return the times to gather a block's weights, and to gather them again and reduce its gradient.

        A pipeline gathers once for all micro-batches of a step, unless it frees weights between them.

        Args:
            size: of the weights in 16 bits.
        """
        layout = self.layout
        gather, reduce = (
            self.kernels.gather(size * width / 2.0, layout.sharding_ranks, stride=layout.tensor)
            for width in (2.0, self.software.gradient_bytes)
        )
        if layout.whole_gradients:
            reduce /= layout.micro_batches
        if layout.pipeline > 1 and layout.reshard != "always":
            return gather / layout.micro_batches, reduce
        return gather, reduce + (gather if layout.sharding == "full" and layout.reshard != "never" else 0.0)

    def _step_communication(self, micro_batch_s: float) -> float:
        """Return the exposed time to reduce gradients and gather weights that are not sharded per block."""
        layout, model = self.layout, self.model
        ranks = layout.data * layout.context
        if ranks == 1:
            return 0.0
        if layout.sharding == "full" and layout.sharding_ranks == ranks:
            return 0.0
        if layout.sharding == "full":  # hybrid: the shards of each node are averaged over the nodes
            local = (model.parameters - model.expert_parameters * (1 - 1 / layout.expert)) / (
                layout.tensor * layout.pipeline
            )
            replicas = ranks // layout.sharding_ranks
            time = 2 * self.kernels.gather(
                local / layout.sharding_ranks * 4.0, replicas, stride=layout.tensor * layout.sharding_ranks
            )
        else:
            width = self.software.gradient_bytes + self.software.weight_bytes
            dense = (model.parameters - model.expert_parameters) / layout.tensor / layout.pipeline
            time = self._reduce_and_gather(dense * width, ranks, stride=layout.tensor)
            # An expert's replicas are ``expert`` ranks apart: over few nodes' links instead of along each node.
            experts = model.expert_parameters / layout.expert / layout.pipeline
            replicas = max(1, ranks * layout.tensor // layout.expert)
            time += self._reduce_and_gather(experts * width, replicas, stride=layout.expert)
        overlapped = self.constants("overlap_step", self.software.name)
        return time - min(time * overlapped, micro_batch_s)

    def _reduce_and_gather(self, size: float, ranks: int, *, stride: int) -> float:
        """Time to reduce gradients and gather weights of ``size`` bytes together."""
        return 2 * self.kernels.gather(size / 2, ranks, stride=stride) if size else 0.0

    def _optimizer(self) -> float:
        """Return the time to read and write this rank's states."""
        layout, software, model = self.layout, self.software, self.model
        local = model.parameters / (layout.tensor * layout.pipeline)
        ranks = layout.sharding_ranks if layout.sharding != "none" else 1
        size = (
            local
            / max(1, ranks)
            * 2
            * (software.weight_bytes + software.gradient_bytes + software.master_bytes + software.optimizer_bytes)
        )
        time = self.kernels.stream(size)
        if layout.offload_optimizer:
            time += size / 2 / (self.accelerator.host_gb_s * 1e9)
        return time

    def _jitter(self) -> float:
        """Return the share of time lost waiting for the slowest of many nodes."""
        nodes = self.layout.gpus / max(8, self.accelerator.link_domain)
        if nodes <= 1:
            return 0.0
        return float(self.constants("jitter", self.software.name) * nodes**0.6)
