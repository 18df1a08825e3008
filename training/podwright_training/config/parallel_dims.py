"""Compute the sizes of a job's parallel dimensions and check that they divide the model; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from podwright_training.config.train_config import TrainConfig

STAGES_PER_RANK = {"1f1b": 1, "interleaved_1f1b": 2, "zero_bubble": 2, "zero_bubble_v": 2}  # Defaults.


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Sizes of the parallel dimensions, outermost first: ranks along the last ones communicate most, so share a node.

    Attributes:
        pipeline: ranks that hold different blocks.
        replicas: copies of the sharded model, each reading other sequences (HSDP).
        shards: ranks that read different sequences and share a copy's weights (FSDP).
        context: ranks that share a sequence's queries, and weights as ``shards`` do.
        tensor: ranks that share each matrix, heads and sequence in between.
        expert: ranks that hold different experts; part of shards x context x tensor.
    """

    pipeline: int = 1
    replicas: int = 1
    shards: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1

    @classmethod
    def of(cls, config: TrainConfig, *, world_size: int, nodes: int) -> ParallelDims:
        """Return the dimensions that the configuration sets; call ``problems`` first."""
        replicas = _replicas(config, nodes)
        fixed = config.pipeline_parallel * replicas * config.context_parallel * config.tensor_parallel
        return cls(
            pipeline=config.pipeline_parallel,
            replicas=replicas,
            shards=world_size // fixed,
            context=config.context_parallel,
            tensor=config.tensor_parallel,
            expert=config.expert_parallel,
        )

    @property
    def data_size(self) -> int:
        """Return the number of shares a global batch is read in."""
        return self.replicas * self.shards

    def data_rank(self, rank: int) -> int:
        """Return the share that a rank reads."""
        return rank // (self.context * self.tensor) % self.data_size


def stages_per_rank(config: TrainConfig) -> int:
    """Return the number of pipeline stages per rank."""
    if config.pipeline_parallel == 1:
        return 1
    return config.pipeline_stages_per_rank or STAGES_PER_RANK[config.pipeline_schedule]


def rank_of_stage(stage: int, ranks: int, schedule: str) -> int:
    """Return the rank of a stage: ranks take turns, in a V there and back."""
    turn, place = divmod(stage, ranks)
    return ranks - 1 - place if schedule == "zero_bubble_v" and turn % 2 else place


def blocks_of_stage(number: int, count: int, blocks: int) -> range:
    """Return the blocks of a stage, of ``count``.

    Where they do not divide evenly, embedding and head count as a block each, so that the ends have fewer.
    """
    if blocks % count == 0:
        return range(number * blocks // count, (number + 1) * blocks // count)
    parts = blocks + 2
    begin, end = (min(max(at * parts // count - 1, 0), blocks) for at in (number, number + 1))
    return range(begin, end)


def vocabulary_shares(config: TrainConfig) -> int:
    """Return the number of ranks that share embedding and head by rows: tensor_parallel, if it divides vocab_size.

    An embedding that is the head too stays whole.
    """
    tensor = config.tensor_parallel
    return 1 if config.tie_word_embeddings or config.vocab_size % tensor else tensor


def accumulates_whole_gradients(config: TrainConfig) -> bool:
    """Return whether a rank keeps the whole gradient between micro-batches, as if it splits the backward pass."""
    return config.accumulated_gradients == "whole" or splits_backward(config)


def splits_backward(config: TrainConfig) -> bool:
    """Return whether a pipeline computes the gradients of weights after those of inputs."""
    return config.pipeline_parallel > 1 and config.pipeline_schedule.startswith("zero_bubble")


def problems(config: TrainConfig, *, world_size: int, nodes: int) -> Iterator[str]:
    """Yield one line for each reason why the configuration does not fit the job."""
    yield from _problems_of_world(config, world_size, nodes)
    yield from _problems_of_model(config)
    yield from _problems_of_sequence(config)
    yield from _problems_of_pipeline(config)


def problems_of_data(config: TrainConfig, data_ranks: int) -> Iterator[str]:
    """Yield why so many ranks that read different data cannot share the streams and a step's batch.

    Each rank needs a sequence, and the same number where the loss depends on how they are divided.
    """
    if config.data_streams % data_ranks:
        yield (
            f"data_streams {config.data_streams} is not divisible by the {data_ranks} ranks that read different "
            "data; change the number of ranks, or data_streams in a new run"
        )
        return
    size = config.global_batch_size
    if size is None:
        return
    if size < data_ranks:
        yield (
            f"global_batch_size {size} leaves some of the {data_ranks} ranks that read different data without a "
            f"sequence; allowed: {data_ranks} or more on so many ranks"
        )
    pass_size = config.train_batch_size * data_ranks
    if config.num_local_experts and size % pass_size:
        yield (
            f"global_batch_size {size} is not divisible by {pass_size}, train_batch_size x ranks that "
            "read different data: otherwise the experts' routers would balance padding"
        )


def _replicas(config: TrainConfig, nodes: int) -> int:
    return (config.data_replicas or nodes) if config.sharding_strategy == "hybrid" else 1


def _problems_of_world(config: TrainConfig, world_size: int, nodes: int) -> Iterator[str]:
    sizes = {
        "pipeline_parallel": config.pipeline_parallel,
        "data_replicas": _replicas(config, nodes),
        "context_parallel": config.context_parallel,
        "tensor_parallel": config.tensor_parallel,
    }
    fixed = 1
    for size in sizes.values():
        fixed *= size
    if world_size % fixed:
        factors = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        product = " x ".join(factors) + (f" = {fixed}" if len(factors) > 1 else "")
        yield f"{product} does not divide the job's {world_size} rank{'s' if world_size > 1 else ''}"
        return
    copy_ranks = world_size // sizes["pipeline_parallel"] // sizes["data_replicas"]
    if copy_ranks % config.expert_parallel:
        yield (
            f"expert_parallel {config.expert_parallel} does not divide the {copy_ranks} ranks of one copy of the "
            "model (ranks / pipeline_parallel / data_replicas)"
        )


def _problems_of_model(config: TrainConfig) -> Iterator[str]:
    tensor = config.tensor_parallel
    heads = {"num_heads": config.num_heads, "num_key_value_heads": config.model.num_key_value_heads}
    for name, value in heads.items():
        if value % tensor:
            yield f"{name} {value} is not divisible by tensor_parallel {tensor}"
    if config.num_local_experts is None and config.intermediate_size % tensor:
        yield f"intermediate_size {config.intermediate_size} is not divisible by tensor_parallel {tensor}"
    if config.async_tensor_parallel:
        yield from _problems_of_overlap(config)
    experts = config.num_local_experts or 1
    if experts % config.expert_parallel:
        experts_text = f"num_local_experts {experts}" if config.num_local_experts else "a model without experts"
        yield f"expert_parallel {config.expert_parallel} does not divide {experts_text}"
    if config.data_replicas and config.sharding_strategy != "hybrid":
        yield f"data_replicas {config.data_replicas} needs sharding_strategy hybrid"


def _problems_of_overlap(config: TrainConfig) -> Iterator[str]:
    if config.tensor_parallel == 1:
        yield "async_tensor_parallel needs tensor_parallel 2 or more"
    if config.compile is False:
        yield "async_tensor_parallel needs compile: the compiler finds the products"
    if config.float8:
        yield "async_tensor_parallel does not work with float8, whose products the compiler does not find"


def _problems_of_sequence(config: TrainConfig) -> Iterator[str]:
    context, tensor = config.context_parallel, config.tensor_parallel
    parts = (2 * context if context > 1 else 1) * tensor
    if config.max_context_width % parts:
        yield (
            f"max_context_width {config.max_context_width} is not divisible by {parts}: context_parallel {context} "
            f"(two chunks per rank) x tensor_parallel {tensor}"
        )


def _problems_of_pipeline(config: TrainConfig) -> Iterator[str]:
    pipeline = config.pipeline_parallel
    if pipeline == 1:
        return
    stages = pipeline * stages_per_rank(config)
    if stages > config.num_layers + 2:
        yield (
            f"num_layers {config.num_layers}, embedding and head are fewer than the {stages} stages of "
            f"pipeline_parallel {pipeline} with pipeline_schedule {config.pipeline_schedule}"
        )
    rank_stages = stages_per_rank(config)
    counts = {"1f1b": rank_stages == 1, "zero_bubble_v": rank_stages == 2}  # noqa: PLR2004 - there and back
    if not counts.get(config.pipeline_schedule, rank_stages > 1):
        allowed = {"1f1b": "1", "zero_bubble_v": "2"}.get(config.pipeline_schedule, "2 or more")
        yield (
            f"pipeline_stages_per_rank: got {rank_stages}, need {allowed} "
            f"with pipeline_schedule {config.pipeline_schedule}"
        )
    micro_batches = config.pipeline_micro_batches or config.train_batch_size
    if config.train_batch_size % micro_batches:
        yield f"train_batch_size {config.train_batch_size} is not divisible by pipeline_micro_batches {micro_batches}"
    any_number = config.pipeline_schedule in ("1f1b", "zero_bubble_v")
    if micro_batches < pipeline or (not any_number and micro_batches % pipeline):
        allowed = "at least" if any_number else "a multiple of"
        yield (
            f"pipeline_micro_batches: got {micro_batches} (default: train_batch_size), need {allowed} "
            f"pipeline_parallel {pipeline} with pipeline_schedule {config.pipeline_schedule}"
        )
    if config.tie_word_embeddings and config.pipeline_schedule == "zero_bubble_v":
        yield "tie_word_embeddings does not work with pipeline_schedule zero_bubble_v: one rank would have it twice"
    if config.pipeline_schedule.startswith("zero_bubble"):
        yield from _problems_of_zero_bubble(config)


def _problems_of_zero_bubble(config: TrainConfig) -> Iterator[str]:
    """Zero bubble computes the gradients of activations and of weights at different times."""
    schedule = config.pipeline_schedule
    budgeted = config.activation_checkpointing and config.activation_checkpointing_mode == "budget"
    compiling = {"compile": config.compile, "async_tensor_parallel": config.async_tensor_parallel}
    for name, is_set in {**compiling, "activation_checkpointing_mode budget": budgeted}.items():
        if is_set:
            yield f"{name} does not work with pipeline_schedule {schedule}, which splits the backward pass"
    if config.reshard_after_forward == "always":
        yield (
            f"reshard_after_forward always does not work with pipeline_schedule {schedule}, whose second half "
            "of a backward pass needs the gathered weights: choose auto or never"
        )
    if config.activation_checkpointing and config.activation_checkpointing_mode == "selective":
        yield (
            f"activation_checkpointing_mode selective does not work with pipeline_schedule {schedule}, which splits "
            "the backward pass: choose full, or activation_checkpointing 0"
        )
    if config.offload_activations:
        yield (
            f"offload_activations does not work with pipeline_schedule {schedule}, which splits the backward pass: "
            "leave it out, or choose 1f1b or interleaved_1f1b"
        )
