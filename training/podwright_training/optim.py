"""The optimizer."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW

from podwright_training.config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> AdamW:
    """Fused AdamW (arXiv:1711.05101): matrices decay, norms do not. The schedule sets each step's learning rate."""
    parameters = list(model.parameters())
    groups = [
        {"params": [item for item in parameters if item.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [item for item in parameters if item.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
