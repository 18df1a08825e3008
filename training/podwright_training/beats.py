"""Share each rank's progress with the agent of its host, through memory that both map.

An agent of an elastic run names the memory in ``PODWRIGHT_BEATS``; without that variable nothing is shared. The agent
beats too: a rank whose agent is gone or frozen ends itself, because the run may go on elsewhere without it.

All values are doubles of eight bytes, each written at once: a reader sees the old or the new one. ``struct.pack_into``
writes zeros first, which a reader may see.
"""

from __future__ import annotations

import enum
import mmap
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PODWRIGHT_BEATS"
GENERATION = "PODWRIGHT_GENERATION"  # number of the set of hosts that train
ORPHANED_STATUS = 76  # The agent of this rank is gone.
BEAT, TIMEOUT, RANKS = range(3)  # places of: seconds of the agent's last beat, of the longest silence, first rank
VALUES = 5  # Each rank has the numbers of a Progress.
DOUBLE_BYTES = 8


class Activity(enum.IntEnum):
    """Kinds of work of a rank, in the order of a start and of a step."""

    STARTING = 0
    LOADING = 1
    DRAWING = 2  # this rank's share of the batch
    COMPUTING = 3
    VALIDATING = 4
    SAVING = 5
    FINISHED = 6  # the run: nothing is left to train


@dataclass(frozen=True)
class Progress:
    """Phase and step of a rank."""

    activity: Activity = Activity.STARTING
    step: int = 0  # steps taken
    began: int = 0  # steps taken before this process
    at_s: float = 0.0  # when it said so, on the host's own clock
    loaded_s: float = 0.0  # when it had read its checkpoint; 0 before


class Beats:
    """Shared memory of one host: a row for the agent, and one for each rank."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._values = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    @classmethod
    def create(cls, path: Path, *, ranks: int) -> Beats:
        """Make the memory for so many ranks."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(DOUBLE_BYTES * (RANKS + ranks * VALUES)))
        return cls(path)

    def beat(self, *, timeout_s: float) -> None:
        """Record that the agent is alive, and for how long its ranks may rely on that."""
        self._values[TIMEOUT] = timeout_s
        self._values[BEAT] = time.monotonic()

    @property
    def silent(self) -> bool:
        """Return whether the agent has not beaten for too long."""
        return time.monotonic() - self._values[BEAT] > self._values[TIMEOUT]

    def write(self, rank: int, progress: Progress) -> None:
        """Set the progress of one of the host's ranks."""
        values = (progress.activity, progress.step, progress.began, progress.loaded_s, progress.at_s)
        for place, value in enumerate(values, start=RANKS + rank * VALUES):
            self._values[place] = float(value)

    def read(self, rank: int) -> Progress:
        """Return the progress of one of the host's ranks."""
        begin = RANKS + rank * VALUES
        activity, step, began, loaded_s, at_s = self._values[begin : begin + VALUES]
        return Progress(Activity(int(activity)), int(step), int(began), at_s, loaded_s)


class Pulse:
    """One rank's side: ``mark`` reports its phase to the agent; without an agent it has no effect."""

    def __init__(self, beats: Beats | None, rank: int) -> None:
        self._beats, self._rank = beats, rank
        self._began, self._loaded_s = 0, 0.0

    @classmethod
    def from_environment(cls) -> Pulse:
        """Connect to the agent that ``PODWRIGHT_BEATS`` names."""
        path = os.environ.get(VARIABLE)
        return cls(Beats(Path(path)) if path else None, int(os.environ.get("LOCAL_RANK", "0")))

    @property
    def heard(self) -> bool:
        """Return whether an agent listens: the agent then decides what follows this process."""
        return self._beats is not None

    def loaded(self, step: int) -> None:
        """Report that training continues after so many steps."""
        self._began, self._loaded_s = step, time.monotonic()

    def check(self) -> None:
        """End the process if its agent is silent: other hosts may continue, and write the same files."""
        if self._beats and self._beats.silent:
            print("error: the agent of this host is gone or frozen: this rank ends", file=sys.stderr, flush=True)
            os._exit(ORPHANED_STATUS)

    def mark(self, activity: Activity, step: int) -> None:
        """Report this rank's phase, after so many steps; end the process if its agent is silent."""
        if self._beats is None:
            return
        self.check()
        now = time.monotonic()
        self._beats.write(self._rank, Progress(activity, step, self._began, now, loaded_s=self._loaded_s))
