"""Predict memory and traffic of checkpoints in memory; for preflight, the planner and the dry run. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.train_config import TrainConfig

FP32_BYTES = 4
STATE_BYTES = 3 * FP32_BYTES  # Each parameter has a weight and two moments.
GENERATIONS = 2  # the newest complete one, and the one that is written


@dataclass(frozen=True)
class MemoryCheckpoints:
    """Needs of each host, with the same share of the state on every rank.

    Attributes:
        rank_bytes: Of weights and optimizer states that a rank writes, and sends to its partner.
        ranks_per_host: Ranks of a host.
        hosts: Hosts of the job.
    """

    rank_bytes: float
    ranks_per_host: int
    hosts: int

    @classmethod
    def of(cls, config: TrainConfig, *, world_size: int, hosts: int) -> MemoryCheckpoints:
        """Return the checkpoints in memory of a run; each parameter is saved once, however many ranks have it."""
        state_bytes = config.model.parameters * state_bytes_per_parameter(config)
        return cls(state_bytes / world_size, world_size // hosts, hosts)

    @property
    def copies(self) -> int:
        """Return how many hosts have each file."""
        return min(self.hosts, 2)

    @property
    def folder_bytes(self) -> float:
        """Return the largest size of a host's folder."""
        return GENERATIONS * self.copies * self.rank_bytes * self.ranks_per_host

    @property
    def host_bytes(self) -> float:
        """Return the memory of a host, with the copy from which the files are written."""
        return self.folder_bytes + self.rank_bytes * self.ranks_per_host

    @property
    def sent_bytes(self) -> float:
        """Return the bytes that a host sends to the next one for each checkpoint."""
        return (self.copies - 1) * self.rank_bytes * self.ranks_per_host


def state_bytes_per_parameter(config: TrainConfig) -> int:
    """Return the bytes of a checkpoint per parameter: weight and moments in fp32, and an average if there is one."""
    average = FP32_BYTES if config.ema_decay is not None else 0
    return average + STATE_BYTES  # An upper bound: Muon keeps one moment of most parameters.
