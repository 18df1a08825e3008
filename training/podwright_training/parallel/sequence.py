"""Divide sequences among ranks: assign tokens to ranks, and let queries attend to other ranks' keys.

Context parallelism splits a sequence of S tokens into 2 C chunks; rank c of C has the queries of chunks c and
2 C - 1 - c, so that all ranks have the same work under a causal mask. Within it, T ranks of tensor parallelism split
these tokens into T runs.

Keys and values of other ranks are gathered for one layer at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from podwright_training.model import Attend, Mask


class SequenceShare:
    """Tokens that one rank has of each sequence."""

    def __init__(self, ranks: DeviceMesh) -> None:
        self._context, self._contexts = ranks.get_local_rank("context"), ranks["context"].size()
        self._tensor, self._tensors = ranks.get_local_rank("tensor"), ranks["tensor"].size()

    def runs(self, length: int) -> list[range]:
        """Return the tokens of this rank's queries, as runs of the sequence."""
        if self._contexts == 1:
            return [range(length)]
        pieces = 2 * self._contexts
        step = length // pieces
        return [range(piece * step, (piece + 1) * step) for piece in (self._context, pieces - 1 - self._context)]

    def queries(self, length: int, device: torch.device) -> Tensor:
        """Return the indices of the tokens of this rank's queries."""
        return torch.cat([torch.arange(run.start, run.stop, device=device) for run in self.runs(length)])

    def embedded_tokens(self, length: int, device: torch.device) -> Tensor:
        """Return the indices of the tokens that only this rank embeds and computes the loss of, part of its queries."""
        return self.queries(length, device).chunk(self._tensors)[self._tensor]


class ContextParallelAttention:
    """Exact attention from a rank's queries to the keys of all ranks that share the sequence.

    Keys and values of one layer are gathered whole: ``2 B S K H`` numbers, 0.5 GiB in bf16 for 128k tokens and 8 heads
    of 128; tensor parallelism divides them. Their gradients are summed and scattered on the way back.
    """

    def __init__(self, attend: Attend, context: DeviceMesh) -> None:
        self._attend = attend
        self._context = context

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, masks: tuple[Mask, Mask]) -> Tensor:
        """Return ``[B, T, N, H]`` from this rank's queries, keys and values, with a mask for each of its runs."""
        rank, size = self._context.get_local_rank(), self._context.size()
        k_pieces, v_pieces = self._gather(torch.stack((k_BTKH, v_BTKH)))
        results = []
        for number, q_run, mask in zip((rank, 2 * size - 1 - rank), q_BTNH.chunk(2, dim=1), masks, strict=True):
            k_seen, v_seen = (torch.cat(pieces[: number + 1], dim=1) for pieces in (k_pieces, v_pieces))
            results.append(self._attend(q_run, k_seen, v_seen, mask))
        return torch.cat(results, dim=1)

    def _gather(self, kv_ZBTKH: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Gather keys and values of all ranks, in the order of the sequence."""
        local = DTensor.from_local(kv_ZBTKH, self._context, [Shard(2)], run_check=False)
        gathered = local.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        halves = gathered.chunk(2 * self._context.size(), dim=2)
        ordered = [*halves[0::2], *reversed(halves[1::2])]
        return [piece[0] for piece in ordered], [piece[1] for piece in ordered]
