"""Begin the phases of a mixture at the steps or tokens that its file names."""

from __future__ import annotations

from podwright_training.data.mixture import data_mixture_of
from podwright_training.data.phased_mixture import MixtureChange
from podwright_training.data.phases import Phase
from podwright_training.data.stream import PackedStream
from podwright_training.loop.run_context import RunContext
from podwright_training.loop.schedule import sequences_of_steps


class MixturePhases:
    """Plan at which sequence each phase begins.

    Tokens are sequences times the context width, whatever the ranks. Steps are counted from the present one, as a
    resume on other ranks may change a step's sequences, and a rollback repeats steps with new sequences.
    """

    def __init__(self, run: RunContext, stream: PackedStream, *, data_size: int) -> None:
        self._run = run
        self._stream = stream
        self._data_size = data_size
        self._phases = data_mixture_of(run.config).phases

    def plan(self) -> None:
        """Plan the phases from the run's present step and sequence on."""
        if self._phases:
            changes = [MixtureChange(self._first_sequence(phase), phase.weights) for phase in self._phases]
            self._stream.change_mixture(changes)

    def _first_sequence(self, phase: Phase) -> int:
        """Return the first sequence of a phase; of one that began before, about so."""
        config, progress = self._run.config, self._run.progress
        if phase.from_tokens is not None:
            return -(-phase.from_tokens // config.max_context_width)
        step = phase.from_step or 1
        if step > progress.step:
            steps = range(progress.step + 1, step)
            return progress.sequences + sequences_of_steps(steps, config, self._data_size)
        return min(progress.sequences, sequences_of_steps(range(1, step), config, self._data_size))
