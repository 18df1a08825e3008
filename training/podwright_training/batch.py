"""Hold the input of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podwright_training.hardware import GPUS

IGNORED = -100  # a label that does not count, as in PyTorch's cross_entropy


@dataclass(frozen=True)
class Batch:
    """Token sequences and their labels.

    Attributes:
        tokens_BT: int64 ``[B, T]``.
        labels_BT: int64 ``[B, T]``, the next token of each, or ``IGNORED``.
        positions_BT: int64 ``[B, T]``, the position of each token in its document; ``None``: positions
            count through the sequence, and every token attends to all before it.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    positions_BT: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device; the copy is asynchronous, from pinned memory for a GPU."""
        positions_BT = self.positions_BT
        return Batch(
            _to(self.tokens_BT, device),
            _to(self.labels_BT, device),
            None if positions_BT is None else _to(positions_BT, device),
        )

    def counting_first(self, sequences: int) -> Batch:
        """Return the batch with labels that count in its first sequences only."""
        if sequences >= len(self.labels_BT):
            return self
        labels_BT = self.labels_BT.clone()
        labels_BT[sequences:] = IGNORED
        return replace(self, labels_BT=labels_BT)

    def counting_tokens(self, lengths: Sequence[int]) -> Batch:
        """Return the batch with labels that count up to a length in each of its first sequences."""
        if all(length == self.labels_BT.shape[1] for length in lengths):
            return self
        labels_BT = self.labels_BT.clone()
        for row, length in enumerate(lengths):
            labels_BT[row, length:] = IGNORED
        return replace(self, labels_BT=labels_BT)

    @property
    def counted_tokens(self) -> int:
        """Return the number of labels that count; on a GPU this synchronizes."""
        return int((self.labels_BT != IGNORED).sum())


def _to(values: Tensor, device: torch.device) -> Tensor:
    if device.type in GPUS and values.device.type == "cpu":
        # A copy from pageable memory waits for all earlier work of the GPU. PyTorch first copies a slice that is not
        # contiguous, even of pinned memory, to pageable memory.
        values = values.contiguous().pin_memory()
    return values.to(device, non_blocking=True)
