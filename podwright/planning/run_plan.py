"""Plan one model on one cluster: memory, speed and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from podwright.planning import trainer_options
from podwright.planning.cluster_hardware import Hardware
from podwright.planning.cost import Cost, cost, text_gb
from podwright.planning.layout import RECOMPUTES, Layout, Optimizer, Precision, Recompute, Reshard, check
from podwright.planning.memory import Memory, error_share, largest_micro_batch, least_recomputation, memory
from podwright.planning.memory_tier import MemoryTier
from podwright.planning.model import Model
from podwright.planning.scaling import EPOCH
from podwright.planning.search import MOST_NODES, Candidate, default_batch
from podwright.planning.throughput import Speed, speed
from podwright.planning.trainer_options import OUR_CHUNK_TOKENS, OUR_SOFTWARE
from podwright.planning.trainer_software import Software
from podwright_training.config.train_config import TrainConfig

SHORTEST = 128  # tokens: what does not fit with sequences as short fits with none


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run. ``cost`` and the losses are None unless the number of tokens was given."""

    model: Model
    hardware: Hardware
    layout: Layout
    memory: Memory
    speed: Speed
    largest_micro_batch: int
    tokens: float | None
    cost: Cost | None
    loss: float | None
    optimal_parameters: float | None
    optimal_tokens: float | None

    @property
    def fits(self) -> bool:
        """True if the run fits in memory."""
        return self.memory.fits

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole cluster."""
        return self.speed.tokens_per_s_per_gpu * self.hardware.gpus

    def need(self) -> str:
        """Return need and capacity: ``this run needs 31.2 GB per GPU, an A10G has 23.1``."""
        device, has = self.hardware.accelerator.name, self.memory.capacity_gb
        return f"this run needs {self.memory.peak_gb:.1f} GB per GPU, an {device} has {has:.1f}"

    def sentence(self) -> str:
        """Return need and capacity and, if the run does not fit, the remedy."""
        return self.need() if self.fits else f"{self.need()}: {self.remedy()}"

    def tight(self) -> str:
        """Return a warning with the free memory, for a run that fits only if the prediction is right."""
        free, has = self.memory.headroom_gb, self.memory.capacity_gb
        error = f"{100 * error_share():.0f} % ({self.memory.error_gb:.1f} GB)"
        return f"this run leaves {free:.1f} of {has:.1f} GB per GPU free, and may need {error} more than predicted"

    def remedy(self) -> str:
        """Return the smallest change that makes the run fit surely."""
        if self.largest_micro_batch:
            return f"use --train-batch-size={self.largest_micro_batch}"
        software = Software.named(OUR_SOFTWARE)
        one_sequence = replace(self.layout, micro_batch=1)
        recomputed = replace(one_sequence, recompute="full")
        offloaded = replace(recomputed, offload_activations=True)
        for layout, words in (
            (recomputed, "use --activation-checkpointing"),
            (offloaded, "use --activation-checkpointing --offload-activations"),
        ):
            if memory(self.model, layout, self.hardware.accelerator, software).fits_surely:
                return f"{words} --train-batch-size=1"
        for nodes in range(self.hardware.nodes + 1, MOST_NODES + 1):
            gpus = nodes * self.hardware.instance.accelerator_count
            larger = replace(offloaded, gpus=gpus)
            if memory(self.model, larger, self.hardware.accelerator, software).fits_surely:
                return f"use {nodes} nodes, with --activation-checkpointing --offload-activations --train-batch-size=1"
        shortest = replace(offloaded, sequence=SHORTEST * offloaded.context)
        if memory(self.model, shortest, self.hardware.accelerator, software).fits_surely:
            return "shorten the sequence or use accelerators with more memory"
        return "use accelerators with more memory: `podwright plan --minimum` lists clusters"

    def unsupported_options(self, run: TrainConfig | None = None) -> list[str]:
        """Return the parts of the layout that ``podwright-train`` does not support; ``run`` is the planned run."""
        return trainer_options.unsupported(self.layout, self.model, run)

    def laid_out_as(self, candidate: Candidate) -> Plan:
        """Return the same run in another layout, with its memory and speed; time and cost stay as they were."""
        return replace(self, layout=candidate.layout, memory=candidate.memory, speed=candidate.speed)

    def settings(self) -> str:
        """Return the instance group for ``cluster.yaml``."""
        return (
            f"- name: workers\n  role: compute\n  instance_type: {self.hardware.instance.name}\n"
            f"  count: {self.hardware.nodes}\n  partition: gpu\n"
        )

    def checkpoint_steps(self) -> int | None:
        """Return the number of steps between checkpoints that loses the least time (Young and Daly)."""
        return max(1, round(self.cost.failures.interval_s / self.speed.step_s)) if self.cost else None

    @property
    def memory_tier(self) -> MemoryTier:
        """Checkpoints in the memory of the nodes."""
        return MemoryTier.of(self.hardware, parameters=self.model.parameters, step_s=self.speed.step_s)


def make_plan(
    model: Model,
    hardware: Hardware,
    *,
    sequence: int,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
    recompute: Recompute | None = None,
    offload_activations: bool = False,
    offload_optimizer: bool = False,
    loss_chunk_tokens: int = OUR_CHUNK_TOKENS,
    whole_gradients: bool = False,
    reshard: Reshard = "auto",
    eager: bool = False,
    hybrid: bool = False,
    replicas: int | None = None,
    degrees: Mapping[str, Any] | None = None,
    precision: Precision = "bf16",
    optimizer: Optimizer = "adamw",
    tokens: float | None = None,
    usd_per_node_hour: float | None = None,
    capacity_block: bool = False,
    software: Software | None = None,
) -> Plan:
    """Plan a run of podwright-train: FSDP or, if ``hybrid``, HSDP in ``replicas`` copies (default: one per node).

    ``degrees`` are those of other parallelism, under the names of ``Layout``.

    Defaults: ``recompute`` is the least that surely fits, ``micro_batch`` the largest that surely fits and that a step
    of a million tokens needs, ``micro_batches`` as many as such a step needs.

    Raises:
        LayoutError: The layout does not work.
    """
    used = software or Software.named(OUR_SOFTWARE)
    accelerator = hardware.accelerator
    base = Layout(gpus=hardware.gpus, micro_batch=1, sequence=sequence, **(degrees or {}))
    check(base, model)
    per_rank = default_batch(base.data, sequence) // base.data
    layout = replace(
        base,
        micro_batch=1 if micro_batch is None else micro_batch,
        micro_batches=1 if micro_batches is None else micro_batches,
        sharding=used.sharding,
        shards=base.data * base.context // (replicas or hardware.nodes) if hybrid else 0,
        recompute=recompute or ("full" if offload_activations else "none"),
        offload_activations=offload_activations,
        offload_optimizer=offload_optimizer,
        loss_chunk_tokens=loss_chunk_tokens,
        whole_gradients=whole_gradients,
        reshard=reshard,
        eager=eager,
        precision=precision,
        optimizer=optimizer,
    )
    if recompute is None:
        layout = least_recomputation(
            model, layout, accelerator, used, choices=("full",) if offload_activations else RECOMPUTES
        )
    largest = largest_micro_batch(model, layout, accelerator, used, at_most=256)
    if micro_batch is None:
        layout = replace(layout, micro_batch=max(1, min(largest, per_rank)))
    if micro_batches is None:
        layout = replace(layout, micro_batches=max(1, round(per_rank / layout.micro_batch)))
    price = {"usd_per_node_hour": usd_per_node_hour, "capacity_block": capacity_block}
    return _assemble(model, hardware, layout, used, largest=largest, tokens=tokens, price=price)


def _assemble(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    software: Software,
    *,
    largest: int,
    tokens: float | None,
    price: Mapping[str, Any],
) -> Plan:
    took = speed(model, layout, hardware.accelerator, software)
    flops = 6.0 * model.active_parameters * tokens if tokens else None
    seconds = tokens / (took.tokens_per_s_per_gpu * hardware.gpus) if tokens else None
    return Plan(
        model=model,
        hardware=hardware,
        layout=layout,
        memory=memory(model, layout, hardware.accelerator, software),
        speed=took,
        largest_micro_batch=largest,
        tokens=tokens,
        cost=cost(
            hardware,
            seconds=seconds,
            parameters=model.parameters,
            dataset_gb=text_gb(tokens) if tokens else 0.0,
            **price,
        )
        if seconds
        else None,
        loss=EPOCH.loss(model.active_parameters, tokens) if tokens else None,
        optimal_parameters=EPOCH.optimal_parameters(flops) if flops else None,
        optimal_tokens=EPOCH.optimal_tokens(flops) if flops else None,
    )
