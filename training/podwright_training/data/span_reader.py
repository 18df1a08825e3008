"""Read the documents that begin in a span of a file's bytes: the interface of all formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from podwright_training.data.formats import DocumentBlock


class SpanReader(ABC):
    """Documents of one shard by their place, read in any order, at the lowest cost in ascending order."""

    @abstractmethod
    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        """Yield the documents that begin in a span; a decoding error is raised after the intact documents before it."""

    def close(self) -> None:  # noqa: B027 - most have no file open between reads
        """Close the file; documents already read stay valid."""


class RowReader(SpanReader):
    """Rows, which are ``size / rows`` bytes apart."""

    def __init__(self, size: int) -> None:
        self._size = size

    def _rows_between(self, begin: int, end: int, rows: int) -> tuple[int, int]:
        """Return the first of the rows in a span, and the one after the last."""
        return -(-begin * rows // self._size), -(-end * rows // self._size)
