"""Hold the input of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
        """Return the batch on another device; the copy is asynchronous."""
        positions_BT = self.positions_BT
        return Batch(
            self.tokens_BT.to(device, non_blocking=True),
            self.labels_BT.to(device, non_blocking=True),
            None if positions_BT is None else positions_BT.to(device, non_blocking=True),
        )

    @property
    def counted_tokens(self) -> int:
        """Return the number of labels that count; on a GPU this synchronizes."""
        return int((self.labels_BT != IGNORED).sum())
