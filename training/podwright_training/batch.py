"""What the model is given in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100  # a label that does not count, as in PyTorch's cross_entropy


@dataclass(frozen=True)
class Batch:
    """Token sequences and what should follow each token.

    Attributes:
        tokens_BT: int64 ``[B, T]``.
        labels_BT: int64 ``[B, T]``, the next token of each, or ``IGNORED``.
        positions_BT: int64 ``[B, T]``, the position of each token in its document; ``None`` counts through the
            sequence, and every token sees all before it.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    positions_BT: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device; the copy may still be under way."""
        positions_BT = self.positions_BT
        return Batch(
            self.tokens_BT.to(device, non_blocking=True),
            self.labels_BT.to(device, non_blocking=True),
            None if positions_BT is None else positions_BT.to(device, non_blocking=True),
        )

    @property
    def counted_tokens(self) -> int:
        """How many labels count. Ask on the CPU: on a GPU it waits for the device."""
        return int((self.labels_BT != IGNORED).sum())
