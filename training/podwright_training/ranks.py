"""Describe this process's place among the ranks of a job."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ranks:
    """Rank of this process in its job, from torchrun's environment variables; the only rank without them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def nodes(self) -> int:
        """Return the number of hosts, which all have the same number of ranks."""
        return self.world_size // self.local_world_size

    @classmethod
    def from_environment(cls) -> Ranks:
        """Read ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``."""
        if "RANK" not in os.environ:
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))


def host_name() -> str:
    """Return this host's name, as Slurm knows it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job as one of its ranks sees them.

    Attributes:
        names: The host of each rank.
        rank: This rank.
    """

    names: Sequence[str]
    rank: int

    @property
    def host(self) -> str:
        """Return this rank's host."""
        return self.names[self.rank]

    @property
    def local_ranks(self) -> list[int]:
        """Return the ranks of this host."""
        return self._on(self.host)

    @property
    def ranks_here(self) -> int:
        """Return the number of ranks on this host."""
        return len(self.local_ranks)

    @property
    def place(self) -> int:
        """Return this rank's index among the ranks of its host."""
        return self.local_ranks.index(self.rank)

    @property
    def is_leader(self) -> bool:
        """Return whether this rank is the first of its host."""
        return self.place == 0

    @property
    def are_several(self) -> bool:
        """Return whether there are other hosts."""
        return len(set(self.names)) > 1

    def partner_of(self, rank: int) -> int | None:
        """Return the rank of the same place on the next host; None if there is no other host."""
        distinct = list(dict.fromkeys(self.names))
        host = self.names[rank]
        following = distinct[(distinct.index(host) + 1) % len(distinct)]
        partner_ranks = self._on(following)
        return None if following == host else partner_ranks[self._on(host).index(rank) % len(partner_ranks)]

    def _on(self, host: str) -> list[int]:
        return [rank for rank, name in enumerate(self.names) if name == host]


def process_seconds() -> float:
    """Return the seconds since this process began, its imports included."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError):
        return time.process_time()  # no Linux
    return max(0.0, up_s - ticks / os.sysconf("SC_CLK_TCK"))
