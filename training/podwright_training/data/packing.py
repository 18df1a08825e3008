"""Pack a virtual stream's documents into sequences of one length: concatenate them and cut at any token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import Fault, Faults
from podwright_training.data.corpus import Corpus, DataPosition
from podwright_training.data.phased_mixture import PhasedMixture
from podwright_training.data.tokenizer import Encoder

READING_THREADS = 8
LEAST_TOKENS = 2  # A sequence's first token is not predicted.


class Packed(NamedTuple):
    """A packed sequence, and the position of its stream behind the sequence."""

    tokens: NDArray[np.uint32]
    length: int  # number of tokens; the sequence is padded behind them
    source: int
    position: DataPosition
    documents: int  # documents that end in the sequence
    faults: tuple[Fault, ...]  # met since the one before
    empty_texts: int  # met since the one before


@dataclass(frozen=True)
class Recipe:
    """Everything needed to make sequences; worker processes get a copy."""

    corpora: tuple[Corpus, ...]
    mixture: PhasedMixture
    encoder: Encoder
    streams: int
    width: int  # tokens of a sequence
    max_bad_records: int
    max_bad_shards: int

    def pack(
        self, positions: Mapping[int, Sequence[DataPosition]], *, first_sequence: int, step: int
    ) -> Iterator[Packed]:
        """Yield some streams' sequences without end: those they own of ``first_sequence``, ``first_sequence + step`` ….

        When a stream has read a source ``max_epochs`` times, its last sequence of the source is padded, and those after
        it are empty.

        Args:
            positions: DataPosition of each stream, for each source, before ``first_sequence``.
            first_sequence: First global sequence to consider.
            step: Distance to the next one.

        Raises:
            DataError: A shard is unreadable, too much is broken, or a source has no document.
        """
        faults = Faults(self.max_bad_records, self.max_bad_shards)
        packers = {
            stream: [
                _Packer(
                    corpus.documents(stream, start, encoder=self.encoder, faults=faults),
                    start,
                    end=DataPosition(corpus.max_epochs or 0),
                )
                for corpus, start in zip(self.corpora, starts, strict=True)
            ]
            for stream, starts in positions.items()
        }
        _resume(packer for stream_packers in packers.values() for packer in stream_packers)
        for number in count(first_sequence, step):
            if number % self.streams not in packers:
                continue
            source = self.mixture.source(number)
            packer = packers[number % self.streams][source]
            tokens = np.zeros(self.width, dtype=np.uint32)
            length = packer.fill(tokens)
            new_faults, empty_texts = faults.take_new(), faults.take_new_empty_texts()
            yield Packed(tokens, length, source, packer.position, packer.take_ended(), new_faults, empty_texts)


class _Packer:
    """Concatenated tokens of one stream and source, from a position on.

    Attributes:
        position: DataPosition of the next token.
    """

    def __init__(
        self, documents: Iterator[tuple[DataPosition, NDArray[Any]]], start: DataPosition, *, end: DataPosition
    ) -> None:
        self.position = start
        self._ended = 0  # documents since they were counted last
        self._end = end
        self._documents = documents
        self._ahead: deque[tuple[DataPosition, NDArray[Any]]] = (
            deque()
        )  # documents with tokens that were not packed yet

    def read(self) -> bool:
        """Read the next document; return whether there is one."""
        document = next(self._documents, None)
        if document:
            self._ahead.append(document)
        return document is not None

    def fill(self, row: NDArray[np.uint32]) -> int:
        """Write the next ``len(row)`` tokens into ``row``, or as many as there are; return their number."""
        filled = 0
        while filled < len(row) and (self._ahead or self.read()):
            position, tokens = self._ahead[0]
            piece = tokens[position.token : position.token + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
            position = position._replace(token=position.token + len(piece))
            if position.token < len(tokens):
                self._ahead[0] = position, tokens
            else:
                self._ahead.popleft()
                self._ended += 1
        self.position = self._next_position()
        return filled

    def take_ended(self) -> int:
        """Return how many documents ended since the call before."""
        ended, self._ended = self._ended, 0
        return ended

    def _next_position(self) -> DataPosition:
        """Return the position of the next token, or the end: a single last token is dropped, as it predicts none."""
        while sum(len(tokens) - position.token for position, tokens in self._ahead) < LEAST_TOKENS:
            if not self.read():
                self._ended += len(self._ahead)
                self._ahead.clear()
                return self._end
        return self._ahead[0][0]


def _resume(packers: Iterable[_Packer]) -> None:
    """Find the documents at which the streams continue, in threads: decompressing releases the GIL."""
    begun = [packer for packer in packers if packer.position != DataPosition()]
    with ThreadPoolExecutor(READING_THREADS) as pool:
        deque(pool.map(_Packer.read, begun), maxlen=0)  # raises an error of reading
