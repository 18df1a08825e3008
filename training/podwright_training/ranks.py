"""Describe this process's place among the ranks of a job."""

from __future__ import annotations

import os
from dataclasses import dataclass


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
