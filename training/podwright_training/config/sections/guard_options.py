"""Options of the guard against bad steps."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import option


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """Set when a step counts as bad, and the response."""

    guard_policy: str = option(
        "stop",
        "Response to a step whose loss or gradient is NaN, infinite or a spike; rollback: return to the newest "
        "checkpoint and continue with the data after that step.",
        choices=("stop", "skip", "rollback"),
    )
    guard_z_score: float | None = option(
        None,
        "Robust z-score, among the last guard_window losses, above which a loss is a spike. Default: no spikes.",
        above=0,
    )
    guard_window: int = option(100, "Losses a spike is compared with.", at_least=8)
