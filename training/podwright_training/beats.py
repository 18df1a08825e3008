"""Share each rank's progress with the agent of its host, through memory that both map.

An agent of an elastic run names the memory in ``PODWRIGHT_BEATS``; without that variable nothing is shared. The agent
beats too: a rank whose agent is gone or frozen ends itself, because the run may go on elsewhere without it.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PODWRIGHT_BEATS"
ORPHANED_STATUS = 76  # of a rank that its agent has left
AGENT = struct.Struct("dd")  # seconds of its last beat, and of the longest silence
SLOT = struct.Struct("qqqdd")  # Progress


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
    """Place of a rank in its work."""

    activity: Activity = Activity.STARTING
    step: int = 0  # steps taken
    began: int = 0  # steps taken before this process
    at_s: float = 0.0  # when it said so, on the host's own clock
    loaded_s: float = 0.0  # when it had read its checkpoint; 0 before


class Beats:
    """The memory of one host: a line of the agent and one of each of its ranks."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, *, ranks: int) -> Beats:
        """Make the memory for so many ranks."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(AGENT.size + ranks * SLOT.size))
        return cls(path)

    def beat(self, *, timeout_s: float) -> None:
        """Say that the agent lives, and for how long its ranks may rely on it."""
        AGENT.pack_into(self._memory, 0, time.monotonic(), timeout_s)

    @property
    def silent(self) -> bool:
        """Return whether the agent has not beaten for too long."""
        at_s, timeout_s = AGENT.unpack_from(self._memory, 0)
        return bool(time.monotonic() - at_s > timeout_s)

    def write(self, rank: int, progress: Progress) -> None:
        """Set the progress of one of the host's ranks."""
        values = (progress.activity, progress.step, progress.began, progress.at_s, progress.loaded_s)
        SLOT.pack_into(self._memory, AGENT.size + rank * SLOT.size, *values)

    def read(self, rank: int) -> Progress:
        """Return the progress of one of the host's ranks."""
        activity, *others = SLOT.unpack_from(self._memory, AGENT.size + rank * SLOT.size)
        return Progress(Activity(activity), *others)


class Pulse:
    """One rank's side: ``mark`` says what it does; without an agent it does nothing."""

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
        """Return whether an agent listens: then it decides what comes after this process."""
        return self._beats is not None

    def loaded(self, step: int) -> None:
        """Say that training goes on after so many steps."""
        self._began, self._loaded_s = step, time.monotonic()

    def mark(self, activity: Activity, step: int) -> None:
        """Say what this rank does now, after so many steps; end the process if its agent is silent."""
        if self._beats is None:
            return
        if self._beats.silent:
            print("error: the agent of this host is gone or frozen: this rank ends", file=sys.stderr, flush=True)
            os._exit(ORPHANED_STATUS)
        now = time.monotonic()
        self._beats.write(self._rank, Progress(activity, step, self._began, now, loaded_s=self._loaded_s))
