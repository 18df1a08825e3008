"""Save checkpoints while training continues.

``Saver.save`` waits for the save before it, copies this rank's tensors into the host's memory, and returns; training
waits no longer than that. A thread then writes the checkpoint with the same threads of the other ranks, over their own
process group, so that its messages never mix with those of training.

The kind of failure decides what happens. A full disk may be emptied: training continues, the previous checkpoint stays
the newest, the next save tries again, and only ``MOST_FAILURES`` in a row end the run. A folder that is not writable
ends it at once (``failed``), before more steps are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from podwright_training.checkpoint import checkpoint_writer, step_folder
from podwright_training.checkpoint.collective_io import CheckpointError, RuinedCheckpointError
from podwright_training.checkpoint.mirror import Mirror
from podwright_training.checkpoint.saving_thread import SavingThread
from podwright_training.checkpoint.snapshot import Snapshot
from podwright_training.checkpoint.stager import Stager
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.config.train_config import TrainConfig
from podwright_training.optim import Optimizers

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

logger = logging.getLogger(__name__)

MOST_FAILURES = 3  # in a row
TIMEOUT = timedelta(hours=2)  # The slowest rank's share of a checkpoint may take this long.


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    step: int
    path: Path
    seconds: float  # time between the request and the complete checkpoint
    paused_s: float  # part of ``seconds`` for which training waited


class Saver:
    """Write a run's checkpoints, one at a time; all ranks call every method that waits.

    Args:
        config: Where to save, how many to keep, and whether to write in the background.
        on_saved: Called with each complete checkpoint, from the saving thread.
        silent: Returns the name of a rank that stands still, empty if none does.

    Attributes:
        group: Process group of the saving threads.
        ruined: Why the weights of the last save are of no use, until ``forget_ruin``; older checkpoints are intact.
    """

    def __init__(
        self, config: TrainConfig, *, on_saved: Callable[[Saved], None], silent: Callable[[], str] = lambda: ""
    ) -> None:
        self._config = config
        self._on_saved = on_saved
        self._mirror = Mirror(config.remote_checkpoints, config.checkpoints) if config.remote_checkpoints else None
        self.group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._thread = SavingThread("checkpoint", patience_s=config.step_timeout_s, silent=silent)
        self._stager = Stager()
        self._failures: list[CheckpointError] = []  # since the last success
        self.ruined: RuinedCheckpointError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the save in progress, whatever ended training; if another rank hangs in it, end the process."""
        self._thread.end(error)
        self._stager.close()

    @property
    def failed(self) -> bool:
        """Return whether saves have failed for good; ranks may learn it at different steps."""
        return bool(self._failures) and (not self._failures[-1].passing or len(self._failures) >= MOST_FAILURES)

    def fetch(self) -> None:
        """Copy the newest checkpoint of a remote ``checkpoint_dir`` if it is newer than the local ones."""
        if self._mirror:
            self._mirror.fetch(self.group)

    def save(self, state: TrainerState, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> None:
        """Begin to write a checkpoint.

        Raises:
            CheckpointError: Earlier saves failed for good; no files are written.
        """
        begin = perf_counter()
        self.wait()
        snapshot = Snapshot.of(state, weights=weights, optimizers=optimizers)
        if self._config.async_checkpoints:
            snapshot = replace(snapshot, tensors=self._stager.stage(snapshot.tensors))
        paused_s = perf_counter() - begin
        self._thread.start(self._write, snapshot, begin, paused_s)
        if not self._config.async_checkpoints:
            self.wait()

    def wait(self) -> None:
        """Wait until no save is in progress.

        Raises:
            CheckpointError: Saves have failed for good.
        """
        self._thread.wait()
        if self.failed:
            raise self._failures[-1]

    def finish(self) -> None:
        """Wait for the last save.

        Raises:
            CheckpointError: It failed: the run's last steps are not saved.
        """
        self.wait()
        if self._failures:
            raise self._failures[-1]

    def forget_ruin(self) -> None:
        """Go on: training has returned to a good checkpoint."""
        self.wait()
        self.ruined = None

    def _write(self, snapshot: Snapshot, begin: float, paused_s: float) -> None:
        config = self._config
        try:
            path = checkpoint_writer.write(config.checkpoints, snapshot, group=self.group)
            seconds = perf_counter() - begin
            self._on_saved(Saved(snapshot.state.step, path, seconds, paused_s if config.async_checkpoints else seconds))
            retained = step_folder.retain(
                config.checkpoints, newest=config.keep_checkpoints, every=config.keep_every, group=self.group
            )
            if self._mirror:
                self._mirror.upload(path, retained=retained, group=self.group)
            self._failures = []
        except RuinedCheckpointError as error:
            self.ruined = self.ruined or error
        except CheckpointError as error:
            self._failures.append(error)
            if not self.failed and dist.get_rank() == 0:
                logger.warning(
                    "%s; training continues, the previous checkpoint is valid, the next save tries again", error
                )
