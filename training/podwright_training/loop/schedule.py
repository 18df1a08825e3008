"""Compute the learning rate and batch size of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from podwright_training.config.sections.schedule_options import DECAYS
from podwright_training.config.train_config import TrainConfig

SMOOTHING = 0.9  # weight of the losses before, for the lowest one of a range


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of the update that ends ``step`` (1 … max_steps).

    It rises linearly to ``lr`` over ``warmup``, decays to ``min_lr`` by ``lr_schedule``, and stays there over
    ``plateau``; both are fractions of ``max_steps``. A ``range`` rises from ``min_lr`` to ``lr`` by the same factor
    in every step (arXiv:1506.01186).
    """
    if config.lr_schedule == "range":
        return float(config.min_lr * (config.lr / config.min_lr) ** (step / config.max_steps))
    warmup_steps = _steps_of(config.warmup, config)
    decay_end = config.max_steps - _steps_of(config.plateau, config)
    if step <= warmup_steps:
        return config.lr * step / warmup_steps
    if step >= decay_end:
        return config.min_lr
    decay_begin = warmup_steps
    if config.lr_schedule == "wsd":
        decay_begin = max(warmup_steps, decay_end - _steps_of(config.wsd_decay, config))
    if step <= decay_begin:
        return config.lr
    progress = (step - decay_begin) / (decay_end - decay_begin)
    return config.min_lr + (config.lr - config.min_lr) * _remaining(progress, config.lr_schedule)


def best_of_range(steps: Iterable[tuple[float, float]]) -> float | None:
    """Return the learning rate at the lowest loss, smoothed, of steps' rates and losses in order; None without one."""
    smooth, weight, smoothed = 0.0, 0.0, []
    for lr, loss in steps:
        if not math.isfinite(loss):
            break
        smooth, weight = SMOOTHING * smooth + (1 - SMOOTHING) * loss, SMOOTHING * weight + 1 - SMOOTHING
        smoothed.append((smooth / weight, lr))
    return min(smoothed)[1] if smoothed else None


def batch_sequences(step: int, config: TrainConfig, data_ranks: int) -> int:
    """Return the sequences of ``step``, for so many ranks that read different data; over ``batch_ramp`` they rise.

    They rise evenly: with ``global_batch_size`` by ``train_batch_size``, so that any number of ranks takes the same
    steps. Otherwise, and with experts, they rise by one micro-batch of every rank: routers would count the padding of
    a partial micro-batch.
    """
    full_size = config.batch_sequences(data_ranks)
    ramp_steps = _steps_of(config.batch_ramp, config)
    if step > ramp_steps:
        return full_size
    any_ranks = config.global_batch_size and not config.num_local_experts
    rise = config.train_batch_size * (1 if any_ranks else data_ranks)
    return min(full_size, rise * (1 + (step - 1) * math.ceil(full_size / rise) // ramp_steps))


def sequences_of_steps(steps: range, config: TrainConfig, data_ranks: int) -> int:
    """Return the sequences of several steps, as ``batch_sequences``."""
    ramp_end = _steps_of(config.batch_ramp, config) + 1
    ramp = range(steps.start, max(steps.start, min(steps.stop, ramp_end)))
    rising = sum(batch_sequences(step, config, data_ranks) for step in ramp)
    return rising + max(0, steps.stop - ramp.stop) * config.batch_sequences(data_ranks)


def _steps_of(fraction: float, config: TrainConfig) -> int:
    """Return a fraction of ``max_steps`` in steps, rounded up.

    The fraction is the decimal number that people write: as a binary one, 0.07 of 100 steps would be 8.
    """
    return math.ceil(Fraction(str(fraction)) * config.max_steps)


def _remaining(progress: float, schedule: str) -> float:
    """Return the remaining fraction of the decay from ``lr`` to ``min_lr``: 1 … 0 as ``progress`` goes 0 … 1."""
    if schedule not in DECAYS:
        *leading, final = DECAYS
        decays = f"{', '.join(leading)} and {final}"
        raise ValueError(f"lr_schedule {schedule} has no decay here, only {decays} have: add it to DECAYS")
    return DECAYS[schedule](progress)
