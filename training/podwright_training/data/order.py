"""Divide the bytes of a split's files evenly among virtual streams, in another order each epoch.

An epoch is a line: the units of all files in random order, one behind the other. A unit is a run of bytes of a file
that can be read from any place, or a whole file that cannot, as it is compressed or its documents are stored by column.
Of that line each stream owns one part, all parts are equally long, and a document belongs to the stream that owns its
first byte. So an epoch is every document once, for any number and size of files, and no file has to be read to know who
owns what. A stream reads its part in windows, of which it shuffles the documents.

Shuffling, at any moment: every global batch has documents from as many places of the line as it has streams. In files
that can be read from any place, these are random places of the whole split.

Without shuffling, the line is the files' bytes in their order, and a window's documents are in theirs: a single stream
reads the documents as they are stored.

With 64 streams a unit has at most 128 KiB, and a window 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOWS_BYTES = 64 << 20  # File bytes whose documents are in memory and shuffled, in all streams together.
# A window of one stream has at least and at most this size.
LEAST_WINDOW_BYTES, MOST_WINDOW_BYTES = 256 << 10, 16 << 20
UNITS_PER_WINDOW = 8
UNITS_PER_STREAM = 64  # Small data is divided into more units, of fewer documents.
LEAST_UNIT_BYTES = 256
MOST_UNITS = 1 << 20  # 24 MB of memory for an epoch's line


class Span(NamedTuple):
    """Bytes of a file: the documents that begin there."""

    file: int  # index among the split's files
    begin: int
    end: int


@dataclass(frozen=True)
class ReadingOrder:
    """The bytes that each stream reads in each epoch.

    Attributes:
        sizes: Bytes of each file.
        divisible: Whether each file can be read from any place.
        streams: Of the run.
        seed: Of the order.
        shuffle: Whether the units of an epoch are in random order, or in that of the files.
    """

    sizes: tuple[int, ...]
    divisible: tuple[bool, ...]
    streams: int
    seed: int
    shuffle: bool = True

    @cached_property
    def total_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(self.sizes)

    @cached_property
    def window_bytes(self) -> int:
        """Return the bytes whose documents a stream shuffles."""
        return min(max(LEAST_WINDOW_BYTES, WINDOWS_BYTES // self.streams), MOST_WINDOW_BYTES)

    @cached_property
    def unit_bytes(self) -> int:
        """Return the size of a unit of a divisible file; the last one of each file is smaller."""
        even = self.total_bytes // (UNITS_PER_STREAM * self.streams)
        fitting = min(max(even, LEAST_UNIT_BYTES), self.window_bytes // UNITS_PER_WINDOW)
        return max(fitting, self.total_bytes // MOST_UNITS)

    def windows(self, stream: int, epoch: int) -> int:
        """Return the number of windows in a stream's part."""
        begin, end = self._part(stream, epoch)
        return -(-(end - begin) // self.window_bytes)

    def spans(self, stream: int, epoch: int, window: int) -> Iterator[Span]:
        """Yield the bytes of a window, in the order of the line."""
        begin, end = self._part(stream, epoch)
        begin += window * self.window_bytes
        end = min(end, begin + self.window_bytes)
        units, ends = _line(self, epoch)
        place = int(np.searchsorted(ends, begin, side="right"))
        while begin < end:
            file, unit_offset, size = self._unit(int(units[place]))
            unit_begin = int(ends[place]) - size
            stop = min(end, unit_begin + size)
            yield Span(file, unit_offset + begin - unit_begin, unit_offset + stop - unit_begin)
            begin, place = stop, place + 1

    def _part(self, stream: int, epoch: int) -> tuple[int, int]:
        """Return where a stream's part of the line begins and ends: another part in each epoch."""
        part = (stream + epoch) % self.streams
        return self.total_bytes * part // self.streams, self.total_bytes * (part + 1) // self.streams

    def _unit(self, unit: int) -> tuple[int, int, int]:
        """Return a unit's file, and the unit's first byte and size there."""
        file = int(np.searchsorted(self._first_units, unit, side="right")) - 1
        unit_offset = (unit - int(self._first_units[file])) * self.unit_bytes
        return file, unit_offset, int(self._unit_sizes[unit])

    @cached_property
    def _first_units(self) -> NDArray[np.int64]:
        """Return the number of each file's first unit."""
        return np.concatenate([[0], np.cumsum(self._unit_counts)[:-1]]).astype(np.int64)

    @cached_property
    def _unit_counts(self) -> list[int]:
        return [
            -(-size // self.unit_bytes) if divisible else min(size, 1)
            for size, divisible in zip(self.sizes, self.divisible, strict=True)
        ]

    @cached_property
    def _unit_sizes(self) -> NDArray[np.int64]:
        sizes = np.full(sum(self._unit_counts), self.unit_bytes, dtype=np.int64)
        last_units = np.cumsum(self._unit_counts) - 1
        for size, count, last_unit in zip(self.sizes, self._unit_counts, last_units, strict=True):
            if count:
                sizes[last_unit] = size - (count - 1) * self.unit_bytes
        return sizes


@lru_cache(maxsize=8)  # streams of a process are in the same epoch or two, of a few sources
def _line(order: ReadingOrder, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an epoch's units in order, and where each ends on the line."""
    sizes = order._unit_sizes  # noqa: SLF001 - a function only so that it is cached for all streams of a process
    dice = np.random.default_rng([order.seed, epoch])
    units = dice.permutation(len(sizes)) if order.shuffle else np.arange(len(sizes))
    return units, np.cumsum(sizes[units])
