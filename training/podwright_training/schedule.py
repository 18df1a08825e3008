"""The learning rate of each step."""

from __future__ import annotations

import math

from podwright_training.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of the update that ends ``step`` (1 … max_steps).

    It rises in a line to ``lr`` over the first ``warmup``, falls as half a cosine to ``min_lr``, and stays there over
    the last ``plateau``; both are fractions of ``max_steps``.
    """
    warmup_steps = math.ceil(config.warmup * config.max_steps)
    decay_steps = config.max_steps - warmup_steps - math.ceil(config.plateau * config.max_steps)
    if step <= warmup_steps:
        return config.lr * step / warmup_steps
    if step >= warmup_steps + decay_steps:
        return config.min_lr
    progress = (step - warmup_steps) / decay_steps
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2
