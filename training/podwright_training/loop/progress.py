"""Count a run's steps, and say whether and why it ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RunProgress:
    """Steps that a run has taken and data that it has read; the same on all ranks.

    Attributes:
        max_steps: Number of steps after which the run is complete.
        step: Steps taken.
        sequences: Sequences that all ranks have read from the training data.
        loaded_step: Step of the last checkpoint that was loaded.
        is_data_spent: A source was read ``max_epochs`` times.
        has_range_ended: The loss of a learning rate range test spiked or became NaN.
    """

    max_steps: int
    step: int = 0
    sequences: int = 0
    loaded_step: int | None = None
    is_data_spent: bool = False
    has_range_ended: bool = False

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left to train."""
        return self.is_data_spent or self.has_range_ended or self.step >= self.max_steps

    @property
    def end_reason(self) -> str:
        """Return why training ends, for the event ``end``."""
        if self.step >= self.max_steps:
            return "max_steps"
        if self.has_range_ended:
            return "range"
        return "max_epochs" if self.is_data_spent else "signal"

    def is_due(self, every: int | None) -> bool:
        """Return whether an action with this interval in steps is due; a rollback does not repeat it."""
        is_new = self.step != self.loaded_step
        return self.is_finished or (is_new and every is not None and self.step % every == 0)
