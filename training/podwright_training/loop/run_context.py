"""Hold what all parts of a training run share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from podwright_training.config.train_config import TrainConfig
from podwright_training.loop.activity import ActivityMonitor
from podwright_training.loop.metrics import Metrics
from podwright_training.loop.progress import RunProgress
from podwright_training.loop.rank_report import RankSignals
from podwright_training.loop.sinks import open_sinks
from podwright_training.loop.step_timer import StepTimer
from podwright_training.loop.stop_requests import StopRequests
from podwright_training.ranks import Hosts, Ranks, host_name
from podwright_training.run_folder import RunFolder


@dataclass
class RunContext:
    """Objects that all parts of a training run share on one rank.

    Attributes:
        is_first_reader: This rank is the first of those that read its share of the data.
        signals: What the ranks agreed on with the last batch.
    """

    config: TrainConfig
    ranks: Ranks
    hosts: Hosts
    is_first_reader: bool
    device: torch.device
    folder: RunFolder
    metrics: Metrics
    progress: RunProgress
    activity: ActivityMonitor
    timer: StepTimer
    stop_requests: StopRequests
    signals: RankSignals = field(default_factory=RankSignals)

    @property
    def is_first_rank(self) -> bool:
        """Return whether this rank writes the run's files and lines."""
        return self.ranks.rank == 0

    @property
    def is_save_due(self) -> bool:
        """Return whether to save on disk after this step, the same on all ranks."""
        return self.stop_requests.are_agreed or self.progress.is_due(self.config.checkpoint_freq)

    @classmethod
    def open(
        cls, config: TrainConfig, ranks: Ranks, device: torch.device, folder: RunFolder, *, data_rank: int
    ) -> RunContext:
        """Open a run's metrics and gather its hosts, with all ranks; ``data_rank`` numbers this rank's data share."""
        is_first = ranks.rank == 0
        sinks = open_sinks(config, folder) if is_first else ()
        metrics = Metrics(folder.metrics, active=is_first, sinks=sinks)
        hosts, is_first_reader = _gather_hosts(data_rank, ranks)
        progress = RunProgress(config.max_steps)
        return cls(
            config=config,
            ranks=ranks,
            hosts=hosts,
            is_first_reader=is_first_reader,
            device=device,
            folder=folder,
            metrics=metrics,
            progress=progress,
            activity=ActivityMonitor(config, progress, folder.stacks(ranks.rank)),
            timer=StepTimer(ranks.world_size),
            stop_requests=StopRequests(announces=is_first),
        )


def _gather_hosts(data_rank: int, ranks: Ranks) -> tuple[Hosts, bool]:
    """Return the hosts of all ranks, and whether this rank is the first reader of its data share."""
    gathered: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(gathered, (host_name(), data_rank))
    data_ranks = [data_rank_of for _, data_rank_of in gathered]
    return Hosts([host for host, _ in gathered], ranks.rank), data_ranks.index(data_rank) == ranks.rank
