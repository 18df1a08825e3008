"""Read the global batch of each step, and agree with the other ranks on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from podwright_training.batch import Batch
from podwright_training.beats import Activity
from podwright_training.checkpoint.store import CheckpointStore
from podwright_training.data.stream import PackedStream
from podwright_training.loop.metrics import batch_hash, digest_text
from podwright_training.loop.mixture_phases import MixturePhases
from podwright_training.loop.rank_report import RankReport, RankSignals
from podwright_training.loop.run_context import RunContext

EPOCH_UNIT = 1e-9  # Ranks add up how often they read a source in whole numbers of it, so in any order.
EPOCH_DIGITS = 4


@dataclass(frozen=True)
class GlobalBatch:
    """This rank's share of a step's global batch, and facts about the whole batch.

    Attributes:
        micro_batches: This rank's share; every rank has as many.
        tokens: Labels that count in the global batch.
        first_tokens: Labels that count in all ranks' first micro-batches.
        metrics: The batch's place in the data, for the event of its step.
    """

    micro_batches: list[Batch]
    tokens: int
    first_tokens: int
    metrics: dict[str, Any]


@dataclass(frozen=True)
class SourceTotals:
    """Amounts of each source that all ranks have read, by its name."""

    sequences: Mapping[str, int]
    documents: Mapping[str, int]
    epochs: Mapping[str, float]


class GlobalBatchReader:
    """Read global batches, and keep the run's progress in the data; all ranks call it.

    Attributes:
        totals: How much was read up to the last batch; ``None`` before the first.
    """

    def __init__(
        self,
        run: RunContext,
        stream: PackedStream,
        checkpoints: CheckpointStore,
        phases: MixturePhases,
        *,
        data_size: int,
    ) -> None:
        self.totals: SourceTotals | None = None
        self._run = run
        self._phases = phases
        self._stream = stream
        self._checkpoints = checkpoints
        self._micro_batch_sequences = run.config.train_batch_size * data_size

    def read(self, sequences: int) -> GlobalBatch:
        """Return the next global batch of so many sequences that has tokens: at the end of the data some have none."""
        while True:
            batch = self._read_any(sequences)
            if batch.tokens:
                return batch
            self._phases.plan()  # Its sequences belong to no step.

    def _read_any(self, sequences: int) -> GlobalBatch:
        """Return the next global batch of so many sequences.

        With it the ranks agree on whether to stop (on request, because saves fail, or because the data was read often
        enough), on how often they read the data, and on how long they took.
        """
        run = self._run
        run.activity.mark(Activity.DRAWING)
        with run.timer.data():
            micro_batches, rows = self._micro_batches(sequences)
            tokens = [batch.counted_tokens for batch in micro_batches]
            rows_hash = batch_hash(rows)
        run.activity.mark(Activity.COMPUTING)
        report = self._report(tokens, rows_hash).sum_over_ranks()
        run.timer.add_alone_us(report.alone_us)
        run.stop_requests.are_agreed = report.stop_requests > 0
        run.signals = RankSignals(
            is_memory_busy=report.busy_memory_saves > 0, are_weights_ruined=report.ruined_weights > 0
        )
        run.progress.is_data_spent = run.config.data_streams in report.spent_streams.tolist()
        run.progress.sequences += sequences
        self.totals = self._totals(report)
        metrics = {
            "sequences": run.progress.sequences,
            "batch_sequences": sequences,
            "batch_digest": digest_text(report.batch_hash),
            **self._source_metrics(self.totals),
        }
        return GlobalBatch(micro_batches, report.tokens, report.first_tokens, metrics)

    def _micro_batches(self, sequences: int) -> tuple[list[Batch], list[Tensor]]:
        """Return this rank's micro-batches, as many as every rank has, and the tokens of each sequence."""
        micro_batches: list[Batch] = []
        rows: list[Tensor] = []
        for begin in range(0, sequences, self._micro_batch_sequences):
            micro_batches.append(self._stream.next_batch(min(self._micro_batch_sequences, sequences - begin)))
            rows += micro_batches[-1].tokens_BT[: len(self._stream.own_sequences())]
        return micro_batches, rows

    def _report(self, tokens: list[int], rows_hash: int) -> RankReport:
        """Return this rank's report; what it read counts only once among the ranks that read the same data."""
        run, stream = self._run, self._stream
        counts = int(run.is_first_reader)
        spent_streams = torch.tensor(stream.spent_streams(), dtype=torch.int64)
        epochs = torch.tensor([round(epochs / EPOCH_UNIT) for epochs in stream.epochs_read()], dtype=torch.int64)
        documents = torch.tensor(stream.documents_read(), dtype=torch.int64)
        alone_us = torch.zeros(run.ranks.world_size, dtype=torch.int64)
        alone_us[run.ranks.rank] = run.timer.take_alone_us()
        return RankReport(
            batch_hash=counts * rows_hash,
            tokens=counts * sum(tokens),
            first_tokens=counts * tokens[0],
            stop_requests=len(run.stop_requests.signals) + self._checkpoints.has_failed,
            busy_memory_saves=int(self._checkpoints.is_memory_busy),
            ruined_weights=int(self._checkpoints.ruined is not None),
            spent_streams=counts * spent_streams,
            epochs=counts * epochs,
            documents=counts * documents,
            alone_us=alone_us,
        )

    def _totals(self, report: RankReport) -> SourceTotals:
        """Return how much of each source all ranks have read."""
        sequences_by_source, streams = self._stream.sequences_by_source, self._run.config.data_streams
        epochs = [round(units * EPOCH_UNIT / streams, EPOCH_DIGITS) for units in report.epochs.tolist()]
        return SourceTotals(
            sequences_by_source,
            dict(zip(sequences_by_source, report.documents.tolist(), strict=True)),
            dict(zip(sequences_by_source, epochs, strict=True)),
        )

    def _source_metrics(self, totals: SourceTotals) -> dict[str, Any]:
        """Return how often the data was read; of several sources the most, and each source's tokens and epochs."""
        epoch = max(totals.epochs.values())
        if len(totals.epochs) == 1:
            return {"epoch": epoch}
        width = self._run.config.max_context_width
        return {
            "epoch": epoch,
            "source_tokens": {name: count * width for name, count in totals.sequences.items()},
            "source_epochs": dict(totals.epochs),
        }
