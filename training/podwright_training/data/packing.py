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

from podwright_training.data.corpus import Corpus, Position
from podwright_training.data.faults import Fault, Faults
from podwright_training.data.mixture import Mixture
from podwright_training.data.tokenizer import Encoder

READING_THREADS = 8


class Packed(NamedTuple):
    """A sequence, and its stream's position after it."""

    tokens: NDArray[np.uint32]
    source: int
    position: Position
    faults: tuple[Fault, ...]  # met since the one before


@dataclass(frozen=True)
class Recipe:
    """Everything needed to make sequences; worker processes get a copy."""

    corpora: tuple[Corpus, ...]
    mixture: Mixture
    encoder: Encoder
    streams: int
    width: int  # tokens of a sequence
    max_bad_records: int
    max_bad_shards: int

    def pack(self, positions: Mapping[int, Sequence[Position]], *, first: int, step: int) -> Iterator[Packed]:
        """Yield the sequences of some streams without end: those they own of ``first``, ``first + step`` ….

        Args:
            positions: Position of each stream, for each source, before ``first``.
            first: First global sequence to consider.
            step: Distance to the next one.

        Raises:
            DataError: A shard is unreadable, too much is broken, or a stream owns no document.
        """
        faults = Faults(self.max_bad_records, self.max_bad_shards)
        packers = {
            stream: [
                _Packer(corpus.documents(stream, start, encoder=self.encoder, faults=faults), start)
                for corpus, start in zip(self.corpora, starts, strict=True)
            ]
            for stream, starts in positions.items()
        }
        _resume(packer for each in packers.values() for packer in each)
        for number in count(first, step):
            if number % self.streams not in packers:
                continue
            source = self.mixture.source(number)
            packer = packers[number % self.streams][source]
            tokens = np.empty(self.width, dtype=np.uint32)
            packer.fill(tokens)
            yield Packed(tokens, source, packer.position, faults.take_new())


class _Packer:
    """Concatenated tokens of one stream and source, from a position on."""

    def __init__(self, documents: Iterator[tuple[Position, NDArray[Any]]], start: Position) -> None:
        self.position = start
        self._documents = documents
        self._tokens: NDArray[Any] = np.empty(0, dtype=np.uint32)  # of the document at position, once read

    def read(self) -> None:
        """Advance to the next document."""
        self.position, self._tokens = next(self._documents)

    def fill(self, row: NDArray[np.uint32]) -> None:
        """Write the next ``len(row)`` tokens into ``row``."""
        filled, start = 0, self.position.token
        while True:
            piece = self._tokens[start : start + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled, start = filled + len(piece), start + len(piece)
            if filled == len(row):
                break
            self.read()
            start = self.position.token
        self.position = self.position._replace(token=start)


def _resume(packers: Iterable[_Packer]) -> None:
    """Find the documents at which the streams continue, in threads: decompressing releases the GIL."""
    begun = [packer for packer in packers if packer.position != Position()]
    with ThreadPoolExecutor(READING_THREADS) as pool:
        deque(pool.map(_Packer.read, begun), maxlen=0)  # raises an error of reading
