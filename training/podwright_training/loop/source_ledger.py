"""Record which sources of a mixture a run reads by which weights, and how much of each it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from podwright_training.data.phased_mixture import MixtureChange
from podwright_training.data.stream import PackedStream
from podwright_training.events import MixtureEvent, ReadEvent
from podwright_training.loop.callback import Callback
from podwright_training.loop.global_batch import GlobalBatchReader
from podwright_training.loop.run_context import RunContext


class SourceLedger(Callback):
    """Writer of the events about a mixture's sources; a run of a single source has none."""

    def __init__(self, run: RunContext, stream: PackedStream, batches: GlobalBatchReader) -> None:
        self._run = run
        self._stream = stream
        self._batches = batches
        self._weights: Mapping[str, float] = {}
        self._logged_sequences = 0
        self._is_mixture = len(stream.sequences_by_source) > 1

    def start(self, *, added: Sequence[str], removed: Sequence[str]) -> None:
        """Write the weights with which a start begins, and the sources that the checkpoint did not have or also has."""
        self._is_mixture = self._is_mixture or bool(removed)
        self._logged_sequences = self._run.progress.sequences
        (change,) = self._stream.weights_in(range(self._logged_sequences, self._logged_sequences + 1))
        self._write_weights(self._run.progress.step, change, added=list(added), removed=list(removed))

    def before_update(self, step: int) -> None:
        """Write the weights that began to apply in a step's batch, before a rollback plans the phases anew."""
        sequences = self._run.progress.sequences
        for change in self._stream.weights_in(range(self._logged_sequences, sequences)):
            if change.weights != self._weights:
                self._write_weights(step, change)
        self._logged_sequences = sequences

    def after_step(self) -> None:
        """Write how much was read, at each checkpoint."""
        if self._run.is_save_due and self._is_mixture:
            self._write_totals()

    def _write_weights(self, step: int, change: MixtureChange, **names: list[str]) -> None:
        self._weights = change.weights
        if self._is_mixture:
            event = MixtureEvent(step=step, from_sequence=change.first_sequence, weights=dict(change.weights))
            self._run.metrics.write(event.with_values(**names))

    def _write_totals(self) -> None:
        run, totals = self._run, self._batches.totals
        if totals:
            width = run.config.max_context_width
            run.metrics.write(
                ReadEvent(
                    step=run.progress.step,
                    source_sequences=dict(totals.sequences),
                    source_documents=dict(totals.documents),
                    source_tokens={name: count * width for name, count in totals.sequences.items()},
                    source_epochs=dict(totals.epochs),
                )
            )
