"""Tolerate a few broken records and shards: log, count and skip them; stop the run beyond a limit."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

from podwright_training.errors import UserError

logger = logging.getLogger(__name__)


class DataError(UserError):
    """A dataset or tokenizer is unusable; the message names the file or identifier and the requirement."""


class MissingColumnError(DataError):
    """A shard has no column of this name."""


class BadRecordError(ValueError):
    """A record is not a document; the message says why."""


class MissingTextError(BadRecordError):
    """A record has no text in a column; its other columns may have some."""


class EmptyTextError(MissingTextError):
    """A record's text is empty or null: it is no damage, and left out without a limit."""


class BadShardError(ValueError):
    """Decoding a shard to its end failed; the message says why."""


class Fault(NamedTuple):
    """A skipped record, or the skipped rest of a shard."""

    kind: str  # "record" or "shard"
    place: str  # file, or file:number of the record counted from 1
    reason: str


@dataclass
class Faults:
    """Distinct faults of a run, up to a limit of each kind, and the number of empty texts.

    Attributes:
        empty_texts: Records without a text, counted each time that they are read.
    """

    max_bad_records: int
    max_bad_shards: int
    fault_by_place: dict[str, Fault] = field(default_factory=dict)  # The same fault in another epoch counts once.
    empty_texts: int = 0
    _taken: int = 0
    _taken_empty_texts: int = 0

    def add(self, fault: Fault) -> None:
        """Count ``fault``; raise ``DataError`` beyond the limit."""
        if fault.place in self.fault_by_place:
            return
        self.fault_by_place[fault.place] = fault
        limit = self.max_bad_records if fault.kind == "record" else self.max_bad_shards
        if self.count(fault.kind) > limit:
            raise DataError(
                f"more than {limit} broken {fault.kind}s (max_bad_{fault.kind}s), the last one "
                f"{fault.place}: {fault.reason}"
            )

    def count(self, kind: str) -> int:
        """Return the number of skipped records or shards."""
        return sum(
            fault.kind == kind for fault in tuple(self.fault_by_place.values())
        )  # Threads may add to the dict meanwhile.

    def take_new(self) -> tuple[Fault, ...]:
        """Return the faults added since the last call."""
        new = tuple(self.fault_by_place.values())[self._taken :] if len(self.fault_by_place) > self._taken else ()
        self._taken = len(self.fault_by_place)
        return new

    def take_new_empty_texts(self) -> int:
        """Return the number of empty texts since the last call."""
        new = self.empty_texts - self._taken_empty_texts
        self._taken_empty_texts = self.empty_texts
        return new

    def log_empty_texts(self, number: int) -> None:
        """Count empty texts, and log their number when it reaches 1, 10, 100, and so on."""
        before, self.empty_texts = self.empty_texts, self.empty_texts + number
        if len(str(self.empty_texts)) > len(str(before)) or (number and not before):
            logger.warning("%s empty texts left out so far by this rank", f"{self.empty_texts:,}")

    def log(self, fault: Fault) -> None:
        """Count ``fault`` and log it once."""
        if fault.place not in self.fault_by_place:
            consequence = "skipped" if fault.kind == "record" else "the rest of it is skipped"
            number = self.count(fault.kind) + 1
            logger.warning("%s: %s; %s, broken %s %d here", fault.place, fault.reason, consequence, fault.kind, number)
        self.add(fault)


def first_line(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]
