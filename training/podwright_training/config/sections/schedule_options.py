"""Options that change from step to step: learning rate and batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podwright_training.config.option import Conflicts, option

# The remaining fraction of the decay from lr to min_lr, 1 to 0 as the progress goes from 0 to 1, by lr_schedule.
DECAYS: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,  # arXiv:1608.03983
    "linear": lambda progress: 1 - progress,
    # Warmup, stable, decay: the best of the decays in arXiv:2405.18392.
    "wsd": lambda progress: 1 - math.sqrt(progress),
}


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Set the number of steps, the global batch and the learning-rate schedule."""

    max_steps: int = option(5000, "Steps of the whole run.", at_least=1)
    global_batch_size: int | None = option(
        None,
        "Sequences per step across all ranks, for any number of ranks; each rank gets an equal share, plus or minus "
        "one. Default: train_batch_size x gradient_accumulation_steps per rank.",
        at_least=1,
    )
    gradient_accumulation_steps: int = option(1, "Micro-batches per rank and step.", at_least=1)
    batch_ramp: float = option(
        0.0,
        "Fraction of max_steps over which a step's batch rises to its full size, from one micro-batch per rank; with "
        "global_batch_size it starts at train_batch_size, except with experts.",
        at_least=0,
        at_most=1,
    )
    lr: float = option(1e-4, "Peak learning rate.", above=0)
    lr_schedule: str = option(
        "cosine",
        "Decay from lr to min_lr; wsd: hold lr until the last wsd_decay; range: rise from min_lr to lr over all steps, "
        "to find the rates that train.",
        choices=(*DECAYS, "range"),
    )
    min_lr: float = option(1e-5, "Learning rate at the end of the decay.", at_least=0)
    warmup: float = option(
        0.0032, "Fraction of max_steps over which the learning rate rises to lr.", at_least=0, at_most=1
    )
    plateau: float = option(0.0, "Fraction of max_steps at the end that stays at min_lr.", at_least=0, at_most=1)
    wsd_decay: float = option(
        0.1, "Fraction of max_steps over which wsd decays, before the plateau.", at_least=0, at_most=1
    )


def conflicts(config: ScheduleOptions) -> Conflicts:
    """Yield the conflicts among the schedule's options."""
    if config.lr_schedule == "range" and not 0 < config.min_lr < config.lr:
        yield (
            ("lr_schedule", "min_lr"),
            f"lr_schedule range rises from min_lr to lr: got {config.min_lr} and {config.lr}, need 0 < min_lr < lr",
        )
    if config.min_lr > config.lr:
        yield ("min_lr", "lr"), f"min_lr {config.min_lr} is above lr {config.lr}"
    parts = ("warmup", "wsd_decay", "plateau") if config.lr_schedule == "wsd" else ("warmup", "plateau")
    if sum(getattr(config, name) for name in parts) > 1:
        *leading, final = [f"{name} {getattr(config, name)}" for name in parts]
        yield parts, f"{', '.join(leading)} and {final} add up to more than 1"
    accumulated, together = config.gradient_accumulation_steps, config.global_batch_size
    if config.batch_ramp and accumulated == 1 and together is None:
        yield (
            ("batch_ramp", "gradient_accumulation_steps"),
            f"batch_ramp {config.batch_ramp} needs more than one micro-batch: set global_batch_size",
        )
    if together is not None and accumulated != 1:
        yield (
            ("global_batch_size", "gradient_accumulation_steps"),
            f"global_batch_size {together} sets the micro-batches: leave out gradient_accumulation_steps {accumulated}",
        )
