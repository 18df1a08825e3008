"""Build the head: hidden states → logits, or the loss of labels without holding the logits of all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from podwright_training.config.architecture import ModelConfig
from podwright_training.model.loss import summed_loss


class SummedLoss(Protocol):
    """``summed_loss``, or its replacement with tensor parallelism."""

    def __call__(  # noqa: D102 - as of summed_loss
        self,
        hidden_SD: Tensor,
        head_VD: Tensor,
        labels_S: Tensor,
        /,
        *,
        chunk_tokens: int | None,
        z_loss: float,
        compiled: bool,
    ) -> Tensor: ...


def likeliest(hidden_SD: Tensor, head_VD: Tensor) -> Tensor:
    """Return the token with the largest logit for each hidden state, ``[S]``."""
    return F.linear(hidden_SD, head_VD).argmax(dim=-1)


class Head(nn.Module):
    """Output matrix; a tied head uses the embedding's matrix.

    Attributes:
        chunk_tokens, compiled: as of ``summed_loss``.
        z_loss: as of ``summed_loss``, where a gradient is computed: an evaluation is of cross-entropy alone.
        summed_loss: computes the loss; tensor parallelism replaces it.
        likeliest: chooses tokens; tensor parallelism replaces it.
    """

    chunk_tokens: int | None = None
    z_loss = 0.0
    compiled = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if not config.tie_word_embeddings:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.summed_loss: SummedLoss = summed_loss
        self.likeliest: Callable[[Tensor, Tensor], Tensor] = likeliest

    def forward(
        self,
        hidden_BTD: Tensor,
        labels_BT: Tensor | None,
        tied_VD: Tensor | None = None,
        *,
        next_tokens: bool = False,
    ) -> Tensor:
        """Return the logits ``[B, T, V]``; with labels, their summed loss, a scalar in fp32.

        Args:
            hidden_BTD: the output of the last norm.
            labels_BT: the next token of each, or ``IGNORED``.
            tied_VD: the embedding, if the head has no matrix of its own.
            next_tokens: return the likeliest token after each instead.
        """
        head_VD = self.weight if tied_VD is None else tied_VD
        if next_tokens:
            return self.likeliest(hidden_BTD, head_VD)
        if labels_BT is None:
            return F.linear(hidden_BTD, head_VD)
        return self.summed_loss(
            hidden_BTD.flatten(0, 1),
            head_VD,
            labels_BT.flatten(),
            chunk_tokens=self.chunk_tokens,
            z_loss=self.z_loss if torch.is_grad_enabled() else 0.0,
            compiled=self.compiled,
        )
