"""Build the embedding: token ids → hidden states."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from podwright_training.config.architecture import ModelConfig


class Embedding(nn.Module):
    """Matrix with a row per word.

    Attributes:
        look_up: returns the rows of tokens; tensor parallelism replaces it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.look_up: Callable[[Tensor, Tensor], Tensor] = F.embedding

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """``[B, T]`` → ``[B, T, D]``."""
        return self.look_up(tokens_BT, self.weight)
