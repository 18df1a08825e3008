"""Let all ranks know, by one all-reduce per batch, what each of them has read and whether one needs to stop."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

VECTORS = ("spent_streams", "epochs", "documents", "alone_us")  # Fields with a number for each source or rank.


@dataclass(frozen=True)
class RankReport:
    """Report of a rank to the others while it reads a batch: whole numbers, whose sums do not depend on the order.

    Attributes:
        batch_hash: Hash of the sequences that it read; modulo 2**64, as their sum.
        tokens: Labels that count in its micro-batches.
        first_tokens: Labels that count in its first micro-batch.
        stop_requests: Reasons to stop: signals, and saves that failed for good.
        busy_memory_saves: 1 if it would be late for a save in memory.
        ruined_weights: 1 if a save has seen that the weights are of no use.
        spent_streams: int64 ``[sources]``, its streams that have read a source ``max_epochs`` times.
        epochs: int64 ``[sources]``, how often its streams have read a source, in a fixed unit.
        documents: int64 ``[sources]``, documents of a source that its streams have read.
        alone_us: int64 ``[world_size]``, microseconds that each rank spent alone.
    """

    batch_hash: int
    tokens: int
    first_tokens: int
    stop_requests: int
    busy_memory_saves: int
    ruined_weights: int
    spent_streams: Tensor
    epochs: Tensor
    documents: Tensor
    alone_us: Tensor

    def sum_over_ranks(self) -> RankReport:
        """Return the sum of all ranks' reports, on all ranks, without waiting for a GPU."""
        values = {field.name: torch.as_tensor(getattr(self, field.name)).reshape(-1) for field in fields(self)}
        flat = torch.cat(list(values.values()))
        dist.all_reduce(flat)
        sums = torch.split(flat, [len(value) for value in values.values()])
        totals: dict[str, Any] = {
            name: total if name in VECTORS else int(total) for name, total in zip(values, sums, strict=True)
        }
        return RankReport(**totals)


@dataclass(frozen=True)
class RankSignals:
    """Agreement of all ranks with the last batch."""

    is_memory_busy: bool = False  # A rank would be late for a save in memory.
    are_weights_ruined: bool = False  # A save has seen that the weights are of no use.
