"""Saving while the training goes on.

``Saver.save`` waits for the save before it, copies this rank's tensors into the host's memory, and returns: that is all
the training waits for. A thread then writes the checkpoint together with the same threads of the other ranks, over a
process group of their own, so that nothing it says to them can meet what the training says.

What a failed save means depends on its kind. A full disk may be emptied: the training goes on, the checkpoint before
stays the newest, the next save tries again, and only ``MOST_FAILURES`` in a row end the run. A folder that cannot be
written at all ends it at once (``failed``), before more steps are taken that nothing will keep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from podwright_training.checkpoint import step_folder
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.mirror import Mirror
from podwright_training.checkpoint.step_folder import Snapshot, TrainerState
from podwright_training.config.train_config import TrainConfig
from podwright_training.optim import Optimizers

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

logger = logging.getLogger(__name__)

MOST_FAILURES = 3  # in a row
PATIENCE = timedelta(hours=2)  # for the slowest rank's share of a checkpoint


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete."""

    step: int
    path: Path
    seconds: float  # from the request until it was complete
    paused_s: float  # of these, the training waited


class Saver:
    """Writes a run's checkpoints, one at a time; every method that waits is called by all ranks.

    Args:
        options: Where, how many are kept, and whether in the background.
        tell: Called with each checkpoint when it is complete, from the saving thread.
    """

    def __init__(self, options: TrainConfig, *, tell: Callable[[Saved], None]) -> None:
        self._options = options
        self._tell = tell
        self._mirror = Mirror(options.remote_checkpoints, options.checkpoints) if options.remote_checkpoints else None
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._stager = _stager()
        self._under_way: Future[None] | None = None
        self._failures: list[CheckpointError] = []  # since the last success

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let the save under way come to its end, whatever ended the training."""
        self._thread.shutdown()
        self._stager.close()

    @property
    def failed(self) -> bool:
        """A save has failed so that there is no use in going on; ranks may learn it at different steps."""
        return bool(self._failures) and (not self._failures[-1].passing or len(self._failures) >= MOST_FAILURES)

    def fetch(self) -> None:
        """Bring the newest checkpoint of a remote ``checkpoint_dir`` here if it is newer than those that are."""
        if self._mirror:
            self._mirror.fetch(self._group)

    def save(self, state: TrainerState, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> None:
        """Begin to write a checkpoint.

        Raises:
            CheckpointError: The ones before failed for good; nothing was begun.
        """
        begin = perf_counter()
        self.wait()
        snapshot = Snapshot.of(state, weights=weights, optimizers=optimizers)
        if self._options.async_checkpoints:
            snapshot = replace(snapshot, tensors=cast("dict[str, Any]", self._stager.stage(snapshot.tensors)))
        paused_s = perf_counter() - begin
        self._under_way = self._thread.submit(self._write, snapshot, begin, paused_s)
        if not self._options.async_checkpoints:
            self.wait()

    def wait(self) -> None:
        """Return when no save is under way.

        Raises:
            CheckpointError: One has failed so that there is no use in going on.
        """
        if self._under_way:
            self._under_way.result()
            self._under_way = None
        if self.failed:
            raise self._failures[-1]

    def finish(self) -> None:
        """Return when the last save is done.

        Raises:
            CheckpointError: It failed, in whatever way: the run's last steps are not saved.
        """
        self.wait()
        if self._failures:
            raise self._failures[-1]

    def _write(self, snapshot: Snapshot, begin: float, paused_s: float) -> None:
        options = self._options
        try:
            path = step_folder.write(options.checkpoints, snapshot, group=self._group)
            seconds = perf_counter() - begin
            self._tell(Saved(snapshot.state.step, path, seconds, paused_s if options.async_checkpoints else seconds))
            kept = step_folder.retain(
                options.checkpoints, newest=options.keep_checkpoints, every=options.keep_every, group=self._group
            )
            if self._mirror:
                self._mirror.upload(path, kept=kept, group=self._group)
            self._failures = []
        except CheckpointError as error:
            self._failures.append(error)
            if not self.failed and dist.get_rank() == 0:
                logger.warning("%s; training goes on, the checkpoint before is valid, the next save tries again", error)


def _stager() -> DefaultStager:
    """Copies to the CPU, into memory it keeps for the next time; pinned where there is a GPU to copy from."""
    gpu = torch.cuda.is_available()
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=gpu, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=gpu
        )
    )
