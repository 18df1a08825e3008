"""Report what a rank is doing, and notice when it takes too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from podwright_training.beats import Activity, Pulse
from podwright_training.checkpoint.saver import TIMEOUT as LONGEST_SAVE
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import limit_waits
from podwright_training.loop.callback import Callback
from podwright_training.loop.faults import StallWatch
from podwright_training.loop.progress import RunProgress


class ActivityMonitor:
    """Report this rank's activity to its agent, and dump the rank's stacks if the activity stalls.

    Args:
        config: Longest times that ranks wait for each other.
        progress: Steps taken.
        stacks: File of the stacks.

    Attributes:
        timeout_s: How long the ranks wait for each other, unless they save.
    """

    def __init__(self, config: TrainConfig, progress: RunProgress, stacks: Path) -> None:
        self._progress = progress
        self._stacks = stacks
        self._pulse = Pulse.from_environment()
        self._stalls: StallWatch | None = None
        self.timeout_s = config.start_timeout_s

    @property
    def has_agent(self) -> bool:
        """Return whether an elastic run's agent started this rank, and decides what follows its end."""
        return self._pulse.heard

    @contextmanager
    def watch_stalls(self) -> Iterator[None]:
        """Dump this rank's stacks when it reports no progress in time."""
        with StallWatch(self._stacks, self._longest_s(Activity.LOADING) / 2) as self._stalls:
            yield

    def mark(self, activity: Activity) -> None:
        """Report the activity that begins."""
        self._pulse.mark(activity, self._progress.step)
        self.allow(activity)

    def allow(self, activity: Activity) -> None:
        """Allow as much time as an activity may take, without reporting it to the agent."""
        if self._stalls:
            self._stalls.alive(self._longest_s(activity) / 2)

    def mark_loaded(self) -> None:
        """Report that the checkpoint, if there is one, is loaded."""
        self._pulse.loaded(self._progress.step)

    def _longest_s(self, activity: Activity) -> float:
        """Return how long the ranks wait for each other in an activity: a save may take longer than a step."""
        return LONGEST_SAVE.total_seconds() if activity == Activity.SAVING else self.timeout_s


class StepTimeout(Callback):
    """Let ranks wait for each other ``step_timeout_s`` at most, once the first step is done.

    The first step compiles, connects and reads far into the data.
    """

    def __init__(self, config: TrainConfig, activity: ActivityMonitor, *, saving_group: dist.ProcessGroup) -> None:
        self._timeout_s = config.step_timeout_s
        self._activity = activity
        self._saving_group = saving_group
        self._is_set = False

    def after_step(self) -> None:
        """Limit the waits after the first step."""
        if not self._is_set:
            limit_waits(self._timeout_s, besides=self._saving_group)
            self._activity.timeout_s = self._timeout_s
            self._is_set = True
