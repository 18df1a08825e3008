"""Predict failures of a job, and how often to save; for the planner, the report and the trainer. Imports no torch.

Young and Daly: a checkpoint that costs ``c`` seconds and a failure every ``M`` seconds are best saved every
``sqrt(2 c M)``. Lost on average are ``c / interval`` for saving and ``(interval / 2 + restart) / M`` for repeating and
restarting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# 419 unexpected interruptions in 54 days on 16,384 H100: https://arxiv.org/abs/2407.21783, section 3.3.4.
GPU_HOURS_BETWEEN_FAILURES = 54 * 24 * 16_384 / 419
HOUR_S = 3600.0
GB = 1e9
LUSTRE_WRITE_GB_S = 1.2  # a small file system; checkpoints are written by all nodes together


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The expected time between failures, and the checkpoint interval to choose."""

    hours_between: float
    checkpoint_s: float
    restart_s: float
    interval_s: float
    goodput: float  # share of the time that makes progress and is not lost


def failures(gpus: int, *, parameters: float, restart_s: float = 600.0, checkpoint_s: float | None = None) -> Failures:
    """Return the mean time between failures of ``gpus`` accelerators and the best checkpoint interval.

    A checkpoint holds weights and two moments in fp32: 12 bytes per parameter.
    """
    between_s = seconds_between_failures(gpus)
    saving_s = checkpoint_s if checkpoint_s is not None else max(2.0, 12 * parameters / GB / LUSTRE_WRITE_GB_S)
    interval_s = best_interval_s(saving_s, between_s)
    lost = saving_s / interval_s + (interval_s / 2 + restart_s) / between_s
    return Failures(
        hours_between=between_s / HOUR_S,
        checkpoint_s=saving_s,
        restart_s=restart_s,
        interval_s=interval_s,
        goodput=max(0.05, 1 - lost),
    )


def seconds_between_failures(gpus: int) -> float:
    """Return the mean time between failures of a job."""
    return GPU_HOURS_BETWEEN_FAILURES / gpus * HOUR_S


def best_interval_steps(saving_s: float, between_s: float, *, step_s: float, at_least_s: float = 0.0) -> int:
    """Return the same in steps, at least one."""
    return max(1, round(max(best_interval_s(saving_s, between_s), at_least_s) / step_s))


def best_interval_s(saving_s: float, between_s: float) -> float:
    """Return the time between checkpoints that loses least."""
    return max(saving_s, math.sqrt(2 * saving_s * between_s))
