"""Save checkpoints while a run trains: on disk at its intervals and at its end, in memory more often."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from podwright_training.beats import Activity
from podwright_training.checkpoint.store import CheckpointStore
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.loop.callback import Callback
from podwright_training.loop.run_context import RunContext


class _Checkpointing(Callback):
    """Save when it is due, but not the weights of a bad step.

    Args:
        run: The run.
        checkpoints: Where to save.
        state: Returns a checkpoint's contents without tensors.
    """

    def __init__(self, run: RunContext, checkpoints: CheckpointStore, state: Callable[[], TrainerState]) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._state = state

    def needs_loss(self) -> bool:
        """Return whether a save is due: weights of a bad step are not saved."""
        return self._is_due()

    @abstractmethod
    def _is_due(self) -> bool:
        """Return whether to save after this step, the same on all ranks."""


class MemoryCheckpointing(_Checkpointing):
    """Save in the hosts' memory, so that a lost host costs ``memory_checkpoint_freq`` steps."""

    def before_update(self, step: int) -> None:
        """Wait for a save that a host lost right after ``step`` would need."""
        if self._checkpoints.is_late_in_memory(step):
            with self._run.timer.besides("saving"):
                self._checkpoints.wait_for_memory()
            self._run.activity.mark(Activity.COMPUTING)

    def after_step(self) -> None:
        """Begin a save if it is due."""
        if self._is_due():
            with self._run.timer.besides("saving"):
                self._checkpoints.save_in_memory(self._state())

    def _is_due(self) -> bool:
        run = self._run
        # The last step is saved on disk.
        is_ending = run.progress.is_finished or run.stop_requests.are_agreed
        is_possible = not is_ending and not run.signals.is_memory_busy
        return is_possible and self._checkpoints.is_due_in_memory(run.progress.step)


class DiskCheckpointing(_Checkpointing):
    """Save on disk every ``checkpoint_freq`` steps, and when the run ends."""

    def after_step(self) -> None:
        """Begin a save if it is due."""
        with self._run.timer.besides("saving"):
            if self._is_due():
                self._checkpoints.save(self._state())

    def _is_due(self) -> bool:
        return self._run.is_save_due
