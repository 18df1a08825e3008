"""Options that divide the model and the data among ranks; ``parallel_dims.py`` checks them against the job."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import option


@dataclass(frozen=True, kw_only=True)
class ParallelismOptions:
    """Set the size of each parallel dimension."""

    sharding_strategy: str = option(
        "full",
        "full: shard over all ranks; hybrid: shard within a node, replicate across nodes.",
        choices=("full", "hybrid"),
    )
    data_replicas: int | None = option(
        None, "Replicas of the sharded model with sharding_strategy hybrid. Default: one per node.", at_least=1
    )
    tensor_parallel: int = option(
        1,
        "Ranks that split each block's matrices and heads, and the sequence outside of them (sequence parallelism).",
        at_least=1,
    )
    async_tensor_parallel: bool = option(
        False,
        "Overlap tensor-parallel communication with the matrix products that need it; needs compile and NVIDIA GPUs "
        "joined by NVLink.",
    )
    context_parallel: int = option(1, "Ranks that share each sequence.", at_least=1)
    pipeline_parallel: int = option(1, "Pipeline stages: ranks that hold consecutive blocks.", at_least=1)
    pipeline_schedule: str = option(
        "1f1b",
        "Pipeline schedule. All but 1f1b give each rank several stages. Both zero_bubble schedules split the backward "
        "pass; in zero_bubble_v the first rank holds the first and the last stage.",
        choices=("1f1b", "interleaved_1f1b", "zero_bubble", "zero_bubble_v"),
    )
    pipeline_stages_per_rank: int | None = option(
        None, "Stages of each rank. Default: 1 with 1f1b, 2 with the others.", at_least=1
    )
    pipeline_micro_batches: int | None = option(
        None, "Micro-batches the pipeline splits each batch into. Default: one per sequence.", at_least=1
    )
    expert_parallel: int = option(1, "Ranks that hold different experts of a block.", at_least=1)
