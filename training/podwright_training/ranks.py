"""Describe this process's place among the ranks of a job."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podwright_training.errors import UserError


@dataclass(frozen=True)
class Ranks:
    """Rank of this process in its job, from the environment variables of torchrun; the only rank without them."""

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
        """Read ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``.

        A script that starts ranks by ``srun`` often sets only the first two: then Slurm's variables say the place on
        the host.

        Raises:
            UserError: A variable is missing or does not fit the others.
        """
        if "RANK" not in os.environ:
            return cls()
        rank, world_size = _number("RANK", None), _number("WORLD_SIZE", _slurm_number("SLURM_NTASKS"))
        only = world_size == 1
        local_rank = _number("LOCAL_RANK", 0 if only else _slurm_number("SLURM_LOCALID"))
        ranks = cls(
            rank, world_size, local_rank, _number("LOCAL_WORLD_SIZE", 1 if only else _tasks_per_node(world_size))
        )
        if not (rank < world_size and local_rank < ranks.local_world_size and world_size % ranks.local_world_size == 0):
            raise UserError(
                f"RANK {rank} of WORLD_SIZE {world_size} and LOCAL_RANK {local_rank} of LOCAL_WORLD_SIZE "
                f"{ranks.local_world_size} do not fit together: ranks are numbered from 0, and all hosts have the same "
                "number of them"
            )
        return ranks


def _number(name: str, default: int | None) -> int:
    """Return a variable's whole number; raise ``UserError`` if it is missing without a default, or none."""
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"[0-9]+", text):
        state = "is not set" if text is None else f"is {text!r}"
        raise UserError(
            f"RANK is set, but {name} {state}, need a whole number: start with torchrun, or export RANK, WORLD_SIZE, "
            "LOCAL_RANK and LOCAL_WORLD_SIZE (ranks of this host) to each process, or none of them for a single process"
        )
    return int(text)


def _slurm_number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _tasks_per_node(world_size: int) -> int | None:
    """Return how many tasks srun started on each node, if that is the same number and they are all ranks."""
    text = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE", "")
    same = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", text)  # such as 8(x2)
    if same is None or int(same[1]) * int(same[2] or 1) != world_size:
        return None
    return int(same[1])


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
