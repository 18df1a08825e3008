"""Save a run's checkpoints in the hosts' memory, on disk and in S3, and restore the newest good one.

A rollback restores everything but the position of the data, so that training continues behind the bad batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist
from torch import Tensor

from podwright_training.beats import Activity
from podwright_training.checkpoint import checkpoint_reader, step_folder
from podwright_training.checkpoint.collective_io import (
    CheckpointError,
    CollectiveIO,
    DamagedCheckpointError,
    RuinedCheckpointError,
)
from podwright_training.checkpoint.memory_tier import MemoryTier
from podwright_training.checkpoint.saver import Saved, Saver
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.resume import merge_states
from podwright_training.errors import DivergedError
from podwright_training.optim import Optimizers
from podwright_training.ranks import Hosts

if TYPE_CHECKING:
    from typing_extensions import Self  # Python has it in typing from 3.11 on.

logger = logging.getLogger(__name__)


class ActivityLog(Protocol):
    """Receiver of what a rank does, which decides when it has stalled."""

    def mark(self, activity: Activity) -> None:
        """Report the activity that begins."""

    def allow(self, activity: Activity) -> None:
        """Allow as much time as an activity may take, without reporting it."""


@dataclass(frozen=True)
class RestoredCheckpoint:
    """A checkpoint whose tensors and random states were loaded."""

    path: Path
    state: TrainerState


class CheckpointStore:
    """A run's checkpoints, in the hosts' memory if the configuration asks for it, on disk, and in S3 if it says so.

    All ranks call every method; properties may differ between ranks.

    Args:
        config: Where, when and how to save.
        hosts: The hosts of all ranks.
        weights: Returns the model's parameters by name.
        optimizers: The optimizers of these parameters.
        activity: Receives what this rank does.
        on_saved: Called with each complete checkpoint on disk, from the saving thread.
        silent: Returns the name of a rank that stands still, empty if none does.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        hosts: Hosts,
        weights: Callable[[], Mapping[str, Tensor]],
        optimizers: Optimizers,
        activity: ActivityLog,
        on_saved: Callable[[Saved], None],
        silent: Callable[[], str],
    ) -> None:
        self._config = config
        self._weights = weights
        self._optimizers = optimizers
        self._activity = activity
        self._saver = Saver(config, on_saved=on_saved, silent=silent)
        self._memory: MemoryTier | None = None
        if config.memory_checkpoint_freq:
            self._memory = MemoryTier(config, hosts, merge=merge_states, silent=silent)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        tiers: list[AbstractContextManager[Any]] = [self._memory] if self._memory else []
        for tier in [*tiers, self._saver]:
            self._opened.enter_context(tier)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the saves in progress, whatever ended training."""
        self._opened.__exit__(kind, error, traceback)

    @property
    def saving_group(self) -> dist.ProcessGroup:
        """Return the process group whose ranks wait for each other's part of a checkpoint on disk."""
        group: dist.ProcessGroup = self._saver.group
        return group

    @property
    def has_failed(self) -> bool:
        """Return whether saves on disk have failed for good; ranks may learn it at different steps."""
        return self._saver.failed

    @property
    def ruined(self) -> RuinedCheckpointError | None:
        """Return why the last weights that were saved are of no use; ranks may learn it at different steps."""
        return self._saver.ruined or (self._memory.ruined if self._memory else None)

    @property
    def is_memory_busy(self) -> bool:
        """Return whether this rank would be late for a save in memory."""
        return self._memory is not None and self._memory.busy

    @property
    def memory_metrics(self) -> dict[str, int | None]:
        """Return the step of the newest complete checkpoint in memory, if there are such, for the metrics."""
        return {"memory_step": self._memory.newest_step} if self._memory else {}

    def restore(self) -> RestoredCheckpoint | None:
        """Load the newest good checkpoint: from memory if that is as new as the disk, else from disk or S3.

        Raises:
            DivergedError: The run has checkpoints, and all are marked bad.
        """
        self._activity.mark(Activity.LOADING)
        in_memory = self._restore_from_memory()
        restored = in_memory
        if restored is None:
            self._activity.allow(Activity.SAVING)  # The copy from S3 takes as long as the one to it.
            self._saver.fetch()
            self._activity.mark(Activity.LOADING)
            restored = self._restore_from_disk()
        if self._memory:
            self._memory.keep(in_memory.state.step if in_memory else None)
        if restored is None:
            self._refuse_ruined()
        return restored

    def roll_back(self, *, skips: Callable[[Path], bool]) -> RestoredCheckpoint | None:
        """Load the newest good checkpoint on disk for which ``skips`` is false, after weights of no use."""
        self._activity.allow(Activity.SAVING)
        self._saver.forget_ruin()
        restored = self._restore_from_disk(skips)
        if self._memory:
            self._memory.keep(None)  # Its checkpoints are of steps that do not count.
        return restored

    def save(self, state: TrainerState) -> None:
        """Begin to write a checkpoint to disk; ``state`` has this rank's position in the data.

        Raises:
            CheckpointError: Earlier saves failed for good.
        """
        self._activity.mark(Activity.SAVING)
        positions: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(positions, state.data)
        state = replace(state, data=merge_states(positions))
        self._saver.save(state, weights=self._weights(), optimizers=self._optimizers)

    def is_due_in_memory(self, step: int) -> bool:
        """Return whether to save in memory after ``step``, if no rank is busy."""
        return self._memory is not None and self._memory.due(step)

    def save_in_memory(self, state: TrainerState) -> None:
        """Begin to write a checkpoint to memory, after the save before; ``state`` is as for ``save``."""
        if self._memory:
            self._activity.mark(Activity.SAVING)
            self._memory.save(state, weights=self._weights(), optimizers=self._optimizers)

    def is_late_in_memory(self, step: int) -> bool:
        """Return whether a host lost right after ``step`` would cost more steps than ``memory_checkpoint_freq``."""
        return self._memory is not None and self._memory.is_late(step)

    def wait_for_memory(self) -> None:
        """Wait until this rank does not save in memory."""
        if self._memory:
            self._activity.mark(Activity.SAVING)
            self._memory.wait()

    def wait(self) -> RuinedCheckpointError | None:
        """Wait until no save is in progress; return why the last weights are of no use, as every rank then knows."""
        self._saver.wait()
        if self._memory:
            self._memory.wait()
        return self.ruined

    def finish(self) -> RuinedCheckpointError | None:
        """Wait for the last save on disk; return why its weights are of no use.

        Raises:
            CheckpointError: The last save failed.
        """
        self._activity.mark(Activity.SAVING)
        self._saver.finish()
        return self._saver.ruined

    def _restore_from_memory(self) -> RestoredCheckpoint | None:
        """Load the newest checkpoint in the hosts' memory, if that is as new as the disk."""
        if not self._memory:
            return None
        on_disk = step_folder.agree_on_intact([self._config.checkpoints])
        checkpoint = self._memory.newest(at_least=step_folder.step_of(on_disk[0]) if on_disk else 0)
        if checkpoint is None:
            return None
        try:
            state = self._memory.restore(checkpoint, weights=self._weights(), optimizers=self._optimizers)
        except CheckpointError as error:
            logger.warning("the checkpoint of step %s in memory is unusable: %s", checkpoint.step, error)
            return None
        return RestoredCheckpoint(self._memory.folder.path_of(state.step), state)

    def _restore_from_disk(self, skips: Callable[[Path], bool] | None = None) -> RestoredCheckpoint | None:
        """Load the newest good checkpoint on disk; with ``skips`` also an older one if that cannot be used."""
        for path in step_folder.agree_on_intact(checkpoint_directories(self._config)):
            if skips and skips(path):
                continue
            try:
                state = checkpoint_reader.restore(path, weights=self._weights(), optimizers=self._optimizers)
            except CheckpointError as error:
                if not (skips or isinstance(error, DamagedCheckpointError)):
                    raise
                logger.warning("%s; skipped", error)
                continue
            return RestoredCheckpoint(path, state)
        return None

    def _refuse_ruined(self) -> None:
        """Raise ``DivergedError`` if the run has checkpoints, and all are marked bad: it would begin anew."""
        folder = self._config.checkpoints
        if bad := CollectiveIO(folder).first_rank(lambda: step_folder.marked_bad(folder)):
            raise DivergedError(
                f"no checkpoint in {folder} is good; the newest is marked bad: {bad}. Start a new run with a lower "
                "--lr, or remove these checkpoints to begin anew"
            )


def checkpoint_directories(config: TrainConfig) -> list[Path]:
    """Return the folders to look for a checkpoint in, in order."""
    start = config.resume_from_checkpoint
    return [config.checkpoints, *([Path(start)] if start and start != config.checkpoint_dir else [])]
