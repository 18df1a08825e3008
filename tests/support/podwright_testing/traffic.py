"""Count the bytes of a rank's collectives in a step of podwright-train, under the names of its dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from podwright.planning.gathered_weights import GatheredWeights
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright_training.config.parallel_dims import blocks_of_stage, rank_of_stage
from podwright_training.config.sections.memory_options import SMALL_BYTES

FP32_BYTES = 4  # FSDP reduces gradients in fp32.
INDEX_BYTES = 8  # Labels and numbers of rows are int64.

Collective = tuple[str, str]  # kind, and dimension of the ranks' mesh


def traffic(model: Model, layout: Layout, *, rank: int = 0) -> dict[Collective, float]:
    """Return the bytes of all whole tensors that a rank gathers, reduces, exchanges or sends in a step.

    Norms of tensor-parallel ranks and routers that balance their experts add up a few kilobytes more. What Muon gathers
    and exchanges is not here: PyTorch chooses it for each matrix by shape and ranks, and the dry run counts it.

    Args:
        model: the model, all of it trained.
        layout: the layout, with ``full`` sharding.
        rank: the rank's place in its pipeline.
    """
    return _Counting(model, layout, rank).all()


class _Group(NamedTuple):
    """Weights that FSDP gathers together."""

    parameters: float  # gathered
    ranks: int  # that share them
    in_block: bool


class _Counting:
    def __init__(self, model: Model, layout: Layout, rank: int) -> None:
        self.model, self.layout = model, layout
        self.stages = layout.pipeline * layout.virtual_stages
        self.rank_of = [rank_of_stage(stage, layout.pipeline, layout.schedule) for stage in range(self.stages)]
        self.own_stages = [stage for stage in range(self.stages) if self.rank_of[stage] == rank]
        self.width = FP32_BYTES if layout.precision == "fp32" else 2
        # Tensor-parallel ranks gather the hidden states of all tokens of a micro-batch.
        self.hidden_bytes = float(layout.tokens_per_micro_batch * model.hidden_size * self.width)

    def all(self) -> dict[Collective, float]:
        bytes_by_collective: Counter[Collective] = Counter()
        for part in (self._weights, self._tensor, self._context, self._experts, self._pipeline):
            for kind, dimension, size in part():
                bytes_by_collective[kind, dimension] += size  # type: ignore[assignment]
        return {key: float(size) for key, size in bytes_by_collective.items() if size}

    # ---- FSDP ----------------------------------------------------------------------------------------

    def _weights(self) -> Iterator[tuple[str, str, float]]:
        layout = self.layout
        reductions = 1 if layout.whole_gradients else layout.micro_batches
        replicas = layout.data * layout.context // layout.sharding_ranks
        for stage in self.own_stages:
            for group in self._groups(stage):
                if group.ranks > 1:
                    yield "all-gather", "shard", self.width * group.parameters * self._gatherings(stage, group)
                    yield "reduce-scatter", "shard", FP32_BYTES * group.parameters * reductions
                if replicas > 1:
                    yield "all-reduce", "replicate", FP32_BYTES * group.parameters / group.ranks

    def _groups(self, stage: int) -> Iterator[_Group]:
        model, layout = self.model, self.layout
        dense, every = layout.sharding_ranks, layout.sharding_ranks * layout.tensor
        vectors = (model.vectors - model.hidden_size) / model.layers
        for _ in self._blocks(stage):
            matrices = model.attention_matrices + (0 if model.experts else model.mlp_matrices)
            yield _Group(matrices / layout.tensor + vectors, dense, in_block=True)
            if model.experts:
                yield _Group(model.shared_expert_matrices, every, in_block=True)
                experts = model.experts * model.one_expert_matrices / layout.expert
                yield _Group(experts, max(1, every // layout.expert), in_block=True)
        end = _Group(model.embedding / self._shares(), dense if self._shares() > 1 else every, in_block=False)
        is_first, is_last = stage == 0, stage == self.stages - 1
        if model.tied:
            yield from [end] * (is_first or is_last)
        else:
            yield from [end] * (is_first + is_last)
        if is_last:
            yield _Group(model.hidden_size, every, in_block=False)  # its norm

    def _gatherings(self, stage: int, group: _Group) -> int:
        """Return how often a step gathers weights: forward, and again in backward where they were freed between."""
        layout = self.layout
        parameters = sum(
            group_of_stage.parameters * self._divisor(group_of_stage) for group_of_stage in self._groups(stage)
        )
        is_small = parameters * self.width <= SMALL_BYTES
        frees = layout.reshard == "always" or (layout.reshard == "auto" and layout.pipeline == 1 and not is_small)
        if layout.pipeline > 1 and not frees:
            return 1
        return layout.micro_batches * (2 if frees and group.in_block else 1)

    def _divisor(self, group: _Group) -> int:
        """Return the ranks of tensor or expert parallelism that divide a group's weights, nearly all of them."""
        return self.layout.sharding_ranks * self.layout.tensor // group.ranks

    # ---- parts of a block ------------------------------------------------------------------------------

    def _tensor(self) -> Iterator[tuple[str, str, float]]:
        """Gather tokens before the first matrices of attention and MLP, sum and scatter them after the last.

        Backward does the reverse. Recomputation gathers again; it ends before a block's last matrix, and selective
        recomputation keeps what was scattered.
        """
        layout, tokens = self.layout, self.layout.tokens_per_micro_batch
        if layout.tensor == 1:
            return
        parts = 1 if self.model.experts else 2
        gathered = 2 * parts + (parts if self._recomputes() else 0)
        scattered = 2 * parts + (1 if layout.recompute == "full" else 0)
        for stage in self.own_stages:
            blocks = len(self._blocks(stage)) * layout.micro_batches
            ends = ((stage == 0) + (stage == self.stages - 1)) * layout.micro_batches if self._shares() > 1 else 0
            yield "all-gather", "tensor", self.hidden_bytes * (gathered * blocks + ends)
            yield "reduce-scatter", "tensor", self.hidden_bytes * (scattered * blocks + ends)
            if ends and stage == self.stages - 1:  # the loss: labels; each token's maximum, sum and own logit
                yield "all-gather", "tensor", INDEX_BYTES * tokens * layout.micro_batches
                yield "all-reduce", "tensor", 3 * FP32_BYTES * tokens * layout.micro_batches

    def _context(self) -> Iterator[tuple[str, str, float]]:
        """Gather keys and values, also for a recomputation; sum and scatter their gradients."""
        model, layout = self.model, self.layout
        if layout.context == 1:
            return
        size = 2.0 * layout.micro_batch * layout.sequence * model.kv_heads * model.head_dim / layout.tensor * self.width
        passes = sum(len(self._blocks(stage)) for stage in self.own_stages) * layout.micro_batches
        yield "all-gather", "context", size * passes * (2 if self._recomputes() else 1)
        yield "reduce-scatter", "context", size * passes

    def _experts(self) -> Iterator[tuple[str, str, float]]:
        """Exchange rows with the ranks that have the experts, there and back, in each pass; their numbers forward."""
        model, layout = self.model, self.layout
        if layout.expert == 1:
            return
        forwards = 2 if self._recomputes() else 1
        rows = self.hidden_bytes / layout.tensor * model.experts_per_token
        bytes_per_block = 2 * rows * (forwards + 1) + INDEX_BYTES * model.experts * forwards
        blocks = sum(len(self._blocks(stage)) for stage in self.own_stages)
        yield "all-to-all", "expert", bytes_per_block * blocks * layout.micro_batches

    # ---- pipeline --------------------------------------------------------------------------------------

    def _pipeline(self) -> Iterator[tuple[str, str, float]]:
        """Send hidden states to the next stage, gradients to the one before; both ends add up a tied embedding's."""
        model, layout = self.model, self.layout
        if layout.pipeline == 1:
            return
        apart = [before != after for before, after in pairwise(self.rank_of)]  # in a V, but for its point
        neighbours = sum(sum(apart[max(0, stage - 1) : stage + 1]) for stage in self.own_stages)
        size = self.hidden_bytes / layout.tensor * neighbours * layout.micro_batches
        if model.tied and {0, self.stages - 1} & set(self.own_stages):
            size += FP32_BYTES * model.embedding / layout.sharding_ranks / layout.tensor
        yield "send", "pipeline", size
        yield "receive", "pipeline", size

    # ---- layout ----------------------------------------------------------------------------------------

    def _blocks(self, stage: int) -> range:
        return blocks_of_stage(stage, self.stages, self.model.layers)

    def _recomputes(self) -> bool:
        return self.layout.recompute in ("full", "selective")

    def _shares(self) -> int:
        return GatheredWeights(self.model, self.layout).vocabulary_shards
