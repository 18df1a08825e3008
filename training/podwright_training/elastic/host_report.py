"""Describe to the leader how a host and each of its ranks stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from podwright_training.beats import Activity


@dataclass(frozen=True)
class HostRankReport:
    """State of one rank, as its agent reports it."""

    exit_status: int | None = None  # negative: ended by that signal; None: it lives
    ended_s: float = 0.0  # since then
    activity: Activity = Activity.STARTING
    step: int = 0
    began: int = 0  # the step it resumed after
    quiet_s: float = 0.0  # since it last said what it does
    overdue: bool = False  # quiet for longer than it may be
    stopped: bool = False  # SIGSTOP or a debugger stops a process.

    @property
    def failed(self) -> bool:
        """Return whether it ended as it should not."""
        return self.exit_status not in (None, 0)

    @property
    def stepped(self) -> bool:
        """Return whether it has taken a step."""
        return self.step > self.began


@dataclass(frozen=True)
class HostReport:
    """State of one host, as its agent reports it."""

    ready: bool = False  # everything is imported: ranks start at once
    generation: int | None = None  # It stays set until all ranks are gone and the leader has said so.
    ranks: tuple[HostRankReport, ...] = ()
    leaving: bool = False  # Slurm asked it to
    port: int = 0  # a free one

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HostReport:
        """Return the report that ``to_dict`` wrote."""
        ranks = (HostRankReport(**{**rank, "activity": Activity(rank["activity"])}) for rank in values["ranks"])
        return cls(**{**values, "ranks": tuple(ranks)})

    @property
    def urgent(self) -> tuple[Any, ...]:
        """Return the state whose changes the leader must get at once."""
        ranks = [
            (rank.exit_status, min(rank.activity, Activity.DRAWING), rank.stepped, rank.overdue) for rank in self.ranks
        ]
        return self.ready, self.generation, self.leaving, ranks
