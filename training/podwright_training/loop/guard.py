"""Find bad steps by their loss and gradient.

It uses only numbers that are the same on all ranks, so that all ranks decide alike without a message.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from podwright_training.config.train_config import TrainConfig

NORMAL_MAD = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
SMALLEST_SPREAD = 1e-6  # A fraction of the median, so that a rounding error among equal losses is no spike.
MOST_BAD = 10  # bad steps in a row that are skipped: more end the run
MOST_ROLLBACKS = 3  # to one checkpoint that get no further: then an older one is tried


class Rollbacks:
    """Count the rollbacks to each checkpoint that came no further than the one before.

    Such a checkpoint's weights or optimizer state are the cause, not the data, which were others each time.
    """

    def __init__(self) -> None:
        self._times: dict[Path, int] = {}
        self._furthest: dict[Path, int] = {}

    def add(self, checkpoint: Path, *, bad_step: int) -> None:
        """Count a rollback to a checkpoint from a bad step."""
        is_further = bad_step > self._furthest.get(checkpoint, 0)
        self._times[checkpoint] = 1 if is_further else self._times[checkpoint] + 1
        self._furthest[checkpoint] = max(bad_step, self._furthest.get(checkpoint, 0))

    def forget(self, checkpoint: Path) -> None:
        """Forget a checkpoint that was written anew."""
        self._times.pop(checkpoint, None)
        self._furthest.pop(checkpoint, None)

    def do_not_help(self, checkpoint: Path) -> bool:
        """Return whether rollbacks to a checkpoint are in vain, so that an older one is to be tried."""
        return self._times.get(checkpoint, 0) >= MOST_ROLLBACKS

    @property
    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints that were returned to."""
        return sorted(path.name for path in self._times)


class Guard:
    """Check steps in order; all ranks pass the same numbers, so all get the same answer.

    A spike is a loss whose robust z-score, its distance above the median of the last losses in units of their spread
    (median absolute deviation), exceeds ``guard_z_score``. Bad losses are not added to the last ones.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._limit = config.guard_z_score
        self._losses: deque[float] = deque(maxlen=config.guard_window)
        self.bad_in_a_row = 0

    def check(self, *, loss: float, grad_norm: float) -> str | None:
        """Return the reason why this step is bad; otherwise ``None``, and add its loss to the last ones."""
        reason = self._complaint(loss, grad_norm)
        if reason is None:
            self._losses.append(loss)
        self.bad_in_a_row = self.bad_in_a_row + 1 if reason else 0
        return reason

    def state(self) -> list[float]:
        """Return the last losses, for a checkpoint."""
        return list(self._losses)

    def load_state(self, losses: Iterable[float]) -> None:
        """Restore the last losses from a checkpoint."""
        self._losses.clear()
        self._losses.extend(losses)

    def _complaint(self, loss: float, grad_norm: float) -> str | None:
        values = {"loss": loss, "grad_norm": grad_norm}
        broken = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        if broken:
            return " and ".join(broken)
        if self._limit is None or len(self._losses) < (self._losses.maxlen or 0):
            return None
        score = robust_z_score(loss, self._losses)
        if score <= self._limit:
            return None
        return f"loss {loss:.4g} is a spike: z-score {score:.3g} among the last {len(self._losses)}"


def robust_z_score(value: float, values: Iterable[float]) -> float:
    """Return how many standard deviations ``value`` is above ``values``, by their median absolute deviation.

    Iglewicz and Hoaglin, *How to Detect and Handle Outliers*, ASQC 1993.
    """
    values = list(values)
    middle = median(values)
    spread = NORMAL_MAD * median(abs(item - middle) for item in values)
    return (value - middle) / max(spread, SMALLEST_SPREAD * abs(middle), math.ulp(0.0))
