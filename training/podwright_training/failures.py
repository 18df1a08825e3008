"""Predict failures of accelerators, and how often to save; ``podwright plan`` uses the same figures. Imports no torch.

Young and Daly: a checkpoint that costs ``c`` seconds and a failure every ``M`` seconds are best saved every
``sqrt(2 c M)``. Lost on average are ``c / interval`` for saving and ``(interval / 2 + restart) / M`` for repeating and
restarting.
"""

from __future__ import annotations

import math

# 419 unexpected interruptions in 54 days on 16,384 H100: https://arxiv.org/abs/2407.21783, section 3.3.4.
GPU_HOURS_BETWEEN_FAILURES = 54 * 24 * 16_384 / 419
HOUR_S = 3600.0


def seconds_between_failures(accelerators: int) -> float:
    """Return the mean time between failures of a job."""
    return GPU_HOURS_BETWEEN_FAILURES / accelerators * HOUR_S


def best_interval_s(saving_s: float, between_s: float) -> float:
    """Return the time between checkpoints that loses least."""
    return max(saving_s, math.sqrt(2 * saving_s * between_s))


def lost_share(saving_s: float, interval_s: float, between_s: float, restart_s: float) -> float:
    """Return the share of the time that saving, repeating and restarting take."""
    return saving_s / interval_s + (interval_s / 2 + restart_s) / between_s
