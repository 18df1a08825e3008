"""The hours left of a training plan, held against those of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from podwright.planning.units import HOUR_S, format_duration

HINT = "`podwright capacity` lists extensions of the plan, each with the command that buys it"


def hours_left(plan: Mapping[str, Any], now: datetime) -> float:
    """Return the hours of a plan from now on, or from its start; of a plan in several parts their sum.

    Args:
        plan: the answer of DescribeTrainingPlan.
        now: the time.
    """
    parts: Iterable[Mapping[str, Any]] = plan.get("ReservedCapacitySummaries", ())
    dated_parts = [part for part in parts if "StartTime" in part and "EndTime" in part]
    # An extension prolongs the plan: the end of its only part may still be the first one.
    spans = dated_parts if len(dated_parts) > 1 else [plan]
    seconds = (
        (span["EndTime"] - max(now, span["StartTime"])).total_seconds()
        for span in spans
        if "EndTime" in span and "StartTime" in span
    )
    return float(sum(max(0.0, item) for item in seconds)) / HOUR_S


def shortfall(plan: Mapping[str, Any], hours: float, *, now: datetime | None = None) -> str:
    """Return in words that a run takes longer than what is left of a plan; empty if it does not."""
    remaining_hours = hours_left(plan, now or datetime.now(timezone.utc))
    if "EndTime" not in plan or hours <= remaining_hours:
        return ""
    end = plan["EndTime"].astimezone(timezone.utc)
    return (
        f"the run takes {format_duration(hours * HOUR_S)}, and training plan {plan['TrainingPlanName']} has "
        f"{format_duration(remaining_hours * HOUR_S)} left: AWS takes its nodes back at {end:%Y-%m-%d %H:%M} UTC"
    )
