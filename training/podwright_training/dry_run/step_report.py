"""Print the memory and traffic of a rank's step, as text or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from podwright_training.config.memory_checkpoints import GENERATIONS
from podwright_training.config.parallel_dims import accumulates_whole_gradients
from podwright_training.config.train_config import TrainConfig
from podwright_training.dry_run import device_memory
from podwright_training.dry_run.rank_step import DryRun, RankStep

SCHEMA = "podwright-train.dry-run/2"
GB = 1e9
KEPT = 2 * GENERATIONS + 1  # here and at the partner, and the copy from which they are written


def text(config: TrainConfig, step: RankStep, *, world_size: int, memory_gb: float | None) -> str:
    """Return a table of one rank's step.

    Args:
        config: Configuration of the run.
        step: what the rank's step takes.
        world_size: ranks of the job.
        memory_gb: a GPU's memory in 1e9 bytes, if it is known.
    """
    return "\n".join(_lines(config, step, world_size, memory_gb))


def findings(config: TrainConfig, step: RankStep, *, memory_gb: float | None) -> Iterator[str]:
    """Yield problems that would end the job on GPUs, or slow it down, one line each.

    Args:
        config: Configuration of the run.
        step: what the rank's step takes.
        memory_gb: a GPU's memory in 1e9 bytes, if it is known.
    """
    peak = step.peak_bytes / GB
    if memory_gb is not None and peak > memory_gb:
        name, size = max(step.memory_bytes.items(), key=lambda item: item[1])
        yield (
            f"out of memory: the peak of {step.kind} is {peak:.3g} GB of {memory_gb:g}, {size / GB:.3g} of it {name}: "
            f"{_remedy(config, name)}"
        )
    for line, count in step.waits.items():
        yield f"{line}: the host of {step.kind} waits for the GPU, {count} times in a step"
    for line, count in step.compilation.breaks.items():
        yield f"{line} (graph broken {count} times)"
    for line, count in step.compilation.recompiles.items():
        yield f"compiled again {count} times: {line}"


def _remedy(config: TrainConfig, category: str) -> str:
    """Return the remedy for the category that takes most memory."""
    again = "" if config.pipeline_schedule.startswith("zero_bubble") else "reshard_after_forward always, "
    of_pipelines = f"use {again}more tensor_parallel or pipeline stages: a pipeline keeps these gathered"
    more_ranks = "use more ranks, sharding_strategy full, or cpu_offload"
    keeps_more = not config.activation_checkpointing or config.activation_checkpointing_mode != "full"
    remedies = {
        device_memory.WEIGHTS: more_ranks,
        device_memory.OPTIMIZER: more_ranks,
        device_memory.GATHERED: of_pipelines if config.pipeline_parallel > 1 else "use more tensor_parallel",
        device_memory.GRADIENTS: more_ranks,
        device_memory.LOGITS: "lower loss_chunk_tokens",
        device_memory.WORKING: _sharded_gradients(config),
        device_memory.ACTIVATIONS: "use activation_checkpointing 1 in mode full" if keeps_more else None,
    }
    return remedies.get(category) or "lower train_batch_size, or use more tensor_parallel or context_parallel"


def _sharded_gradients(config: TrainConfig) -> str | None:
    """Return how a rank keeps its shard alone of the gradient that it accumulates."""
    if config.accumulated_gradients == "whole":
        return "use accumulated_gradients sharded"
    return "use pipeline_schedule interleaved_1f1b" if accumulates_whole_gradients(config) else None


def document(config: TrainConfig, steps: Sequence[RankStep], *, world_size: int, memory_gb: float | None) -> DryRun:
    """Return the document of all ranks."""
    return DryRun(
        schema=SCHEMA,
        world_size=world_size,
        findings=[line for step in steps for line in findings(config, step, memory_gb=memory_gb)],
        model_flops=_model_flops(config, world_size),
        ranks=list(steps),
    )


def _lines(config: TrainConfig, step: RankStep, world_size: int, memory_gb: float | None) -> Iterator[str]:
    yield f"rank {step.rank}, {step.kind}: {step.parameters:,} parameters in its shards"
    yield from _table("memory at the peak", "GB", [(name, size / GB) for name, size in step.memory_bytes.items()])
    peak = step.peak_bytes / GB
    yield f"  {'total':<36}{peak:>12.3f}" + (f"  {_verdict(peak, memory_gb)}" if memory_gb else "")
    saved = step.saved_bytes / GB
    place = "which the host keeps" if config.cpu_offload else "of it"
    yield f"  a checkpoint has {saved:.3f} GB, {place}; memory_checkpoint_freq takes {KEPT * saved:.3f} GB of the host"
    yield f"  {'collectives of a step':<28}{'calls':>8}{'GB':>12}"
    for calls in step.collectives:
        yield f"    {f'{calls.kind}, {calls.dimension}':<26}{calls.calls:>8,}{calls.size_bytes / GB:>12.3f}"
    kernels = ", ".join(f"{count:,} {kind}" for kind, count in sorted(step.kernels.items()))
    yield f"  kernels of a step: {sum(step.kernels.values()):,} ({kernels})"
    waits = ", ".join(f"{count} at {line}" for line, count in sorted(step.waits.items()))
    yield f"  the host waits for the GPU: {waits or 'never'}"
    computed, model = step.flops / 1e12, _model_flops(config, world_size) / 1e12
    yield f"  matrix products and attention: {computed:,.3f} TFLOP; an even share of the model's: {model:,.3f}"
    if step.compilation.graphs:
        breaks, again = (sum(counts.values()) for counts in (step.compilation.breaks, step.compilation.recompiles))
        yield f"  compiled: {step.compilation.graphs} graphs, {breaks} breaks within them, {again} compiled again"
    yield f"  built in {step.start_s:.1f} s here"
    for line in findings(config, step, memory_gb=memory_gb):
        yield f"  finding: {line}"


def _table(title: str, unit: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"  {title:<36}{unit:>12}"
    for name, value in rows:
        yield f"    {name:<34}{value:>12.3f}"


def _verdict(peak_gb: float, memory_gb: float) -> str:
    return f"of {memory_gb:g}: " + ("fits" if peak_gb <= memory_gb else "does not fit")


def _model_flops(config: TrainConfig, world_size: int) -> float:
    """Return the model's floating-point operations of a step, divided evenly among the ranks that share it."""
    ranks = config.tensor_parallel * config.context_parallel * config.pipeline_parallel
    tokens = config.train_batch_size * config.micro_batches(world_size // ranks) * config.max_context_width
    return tokens * config.model.flops_per_token(config.max_context_width) / ranks
