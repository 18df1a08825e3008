"""Apply every kind of parallelism to a stage, in the order that works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from podwright_training.config.parallel_dims import rank_of_stage, stages_per_rank, vocabulary_shares
from podwright_training.config.sections.memory_options import SMALL_BYTES
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import DTYPES, BiasedRouter, Block, LlamaForCausalLM, MixtureOfExperts, configure
from podwright_training.parallel import expert, tensor, vocabulary
from podwright_training.parallel.meshes import Meshes, sharding
from podwright_training.parallel.sequence import ContextParallelAttention, SequenceShare
from podwright_training.parallel.stage import Stage


def stages_of(config: TrainConfig, meshes: Meshes) -> list[Stage]:
    """Return this rank's stages, divided, on the meta device: without allocation or communication."""
    pipeline, share = meshes.ranks["pipeline"], SequenceShare(meshes.ranks)
    count = pipeline.size() * stages_per_rank(config)
    stages = []
    for number in range(count):
        if rank_of_stage(number, pipeline.size(), config.pipeline_schedule) != pipeline.get_local_rank():
            continue
        with torch.device("meta"):
            model = LlamaForCausalLM(config.model)
        stages.append(Stage(model, number=number, count=count, share=share))
        divide(stages[-1], config, meshes)
    return stages


def divide(stage: Stage, config: TrainConfig, meshes: Meshes) -> None:
    """Divide a stage on the meta device; the pipeline has already chosen its blocks.

    1. Options of each block: float8 replaces its matrices, so it comes before they are divided; recomputation and
       compilation are only marked here and cover the rest: tokens, keys and values from other ranks are gathered
       again in backward.
    2. Expert and tensor parallelism determine a rank's matrices, which the rest works on. Routers learn to balance the
       tokens of all ranks.
    3. Context parallelism, around the rank's heads after tensor parallelism.
    4. FSDP last: it shards what is left on each rank and must see the final parameters. Blocks before the rest, so that
       one block is gathered at a time. Routers and experts of a mixture before their block: tensor parallelism leaves
       them whole, so more ranks share them. Weights that are few stay gathered until backward. Those of a CPU are
       gathered all at once: as nothing is sent there while something is computed, ranks wait for each other at every
       gathering. Routers with a bias compute in fp32, so they are gathered by themselves.
    5. Embedding and head are large and used at the ends alone, so each is gathered by itself: the embedding not again
       in backward, which needs its size only; the head, whose backward follows its forward, is kept until then. What
       is left is the last norm, and the embedding if it is the head too.
    6. No group has orders of what to prefetch: FSDP overlaps enough. While a GPU computes a block, the host, which
       waits for nothing, has asked for the next one's weights; in backward it asks at the start of a block for those
       of the block before. So two blocks are gathered at a time, as the planner counts, and each further one would
       take its weights.
    """
    configure(stage.model, config, meshes.ranks.device_type)
    blocks = [block for block in stage.model.model.layers if isinstance(block, Block)]
    for block in blocks:
        if isinstance(block.mlp, MixtureOfExperts):
            block.mlp.sum_counts = expert.SumOverRanks(sharding(meshes.data_parallel))
        if meshes.experts["expert"].size() > 1 and isinstance(block.mlp, MixtureOfExperts):
            expert.divide_experts(block.mlp.experts, meshes.experts["expert"])
        if meshes.matrices["tensor"].size() > 1:
            tensor.divide_block(block, meshes.matrices["tensor"])
        if meshes.ranks["context"].size() > 1:
            block.self_attn.attend = ContextParallelAttention(block.self_attn.attend, meshes.ranks["context"])
    if config.async_tensor_parallel:
        tensor.overlap(meshes.matrices["tensor"])
    if vocabulary_shares(config) > 1:
        _divide_vocabulary(stage, meshes.matrices["tensor"])
    _shard(stage, blocks, config, meshes)


def _divide_vocabulary(stage: Stage, tensor_ranks: DeviceMesh) -> None:
    if stage.is_first:
        vocabulary.divide_embedding(stage.model.model.embed_tokens, tensor_ranks)
        stage.embeds_together = True
    if stage.is_last:
        vocabulary.divide_head(stage.model.lm_head, tensor_ranks)


def _shard(stage: Stage, blocks: list[Block], config: TrainConfig, meshes: Meshes) -> None:
    # mixtures and divided embeddings return views; nothing here changes activations in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    precision = MixedPrecisionPolicy(param_dtype=DTYPES[config.compute_precision], reduce_dtype=torch.float32)
    policies: dict[str, Any] = {"mp_policy": precision, "offload_policy": _offload(config, meshes)}
    wish, small = config.reshard_after_forward, _is_small(stage, config)
    # a pipeline soon computes its next micro-batch with the same weights
    reshard = wish == "always" or (wish == "auto" and not small and config.pipeline_parallel == 1)
    at_once = (
        wish == "auto" and small and meshes.data_parallel.device_type == "cpu" and meshes.matrices["tensor"].size() == 1
    )
    within = policies | {"reshard_after_forward": reshard}
    for block in blocks:
        if isinstance(block.mlp, MixtureOfExperts):
            mesh = sharding(meshes.experts)
            fully_shard(block.mlp.experts, mesh=mesh, shard_placement_fn=_rows_of(mesh["shard"].size()), **within)
            if isinstance(block.mlp.gate, BiasedRouter):
                exact = {**within, "mp_policy": MixedPrecisionPolicy()}
                fully_shard(block.mlp.gate, mesh=sharding(meshes.data_parallel), **exact)
            fully_shard(block.mlp, mesh=sharding(meshes.data_parallel), **within)
        if not at_once:
            fully_shard(block, mesh=sharding(meshes.matrices), **within)
    if not at_once:
        _shard_ends(stage, config, meshes, policies, reshard=reshard)
    fully_shard(stage, mesh=sharding(meshes.data_parallel), reshard_after_forward=False, **policies)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            _sum_gradients(module)


def _shard_ends(stage: Stage, config: TrainConfig, meshes: Meshes, policies: dict[str, Any], *, reshard: bool) -> None:
    if config.tie_word_embeddings:
        return
    mesh = sharding(meshes.matrices if vocabulary_shares(config) > 1 else meshes.data_parallel)
    if stage.is_first:
        embedding = fully_shard(stage.model.model.embed_tokens, mesh=mesh, reshard_after_forward=reshard, **policies)
        embedding.set_unshard_in_backward(not reshard)
    if stage.is_last:
        fully_shard(stage.model.lm_head, mesh=mesh, reshard_after_forward=False, **policies)


def _is_small(stage: Stage, config: TrainConfig) -> bool:
    weights = sum(parameter.numel() for parameter in stage.parameters())
    return weights * DTYPES[config.compute_precision].itemsize <= SMALL_BYTES


def _rows_of(ranks: int) -> Callable[[nn.Parameter], Shard]:
    """Shard experts within each matrix where that is even: there may be more ranks than experts."""
    return lambda parameter: Shard(0 if parameter.shape[1] % ranks else 1)


def _offload(config: TrainConfig, meshes: Meshes) -> OffloadPolicy:
    if not config.cpu_offload:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=meshes.ranks.device_type != "cpu")


def _sum_gradients(module: FSDPModule) -> None:
    """Sum gradients, not average: ranks compute the loss of different tokens, on meshes of any size."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
