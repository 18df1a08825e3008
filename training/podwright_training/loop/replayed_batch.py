"""The batch of a step, as ``replay`` prints it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class DocumentBeginning:
    """First words of a document's part in a sequence, and its tokens there."""

    text: str
    tokens: int


@dataclass(frozen=True)
class ReplayedSequence:
    """One sequence of a batch, with its loss if it was asked for."""

    number: int
    documents: list[DocumentBeginning]
    loss: float | None


@dataclass(frozen=True)
class ReplayedBatch:
    """The document of `podwright-train replay --json`: the batch of a step, as training read it.

    Attributes:
        step: Of the run.
        digest: Of the batch, as in the metrics.
        weights_step: Step of the weights that gave the losses; None without them.
        sequences: In the order of training.
    """

    step: int
    digest: str
    weights_step: int | None
    sequences: list[ReplayedSequence]

    def lines(self) -> Iterator[str]:
        """Yield a line for the batch, then each sequence with the first words of its documents."""
        first_sequence, last_sequence = self.sequences[0].number, self.sequences[-1].number
        yield (
            f"step {self.step}: sequences {first_sequence} to {last_sequence}, digest {self.digest}, as in training"
            + ("" if self.weights_step is None else f"; losses after step {self.weights_step}")
        )
        for sequence in self.sequences:
            yield f"sequence {sequence.number}" + ("" if sequence.loss is None else f" | loss {sequence.loss:.4f}")
            for document in sequence.documents:
                yield f"    {document.text!r}, {document.tokens} tokens"
