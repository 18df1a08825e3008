"""Hold all events of a run in little memory: numbers of training steps are in arrays, by column.

As objects, a million steps took 3 GB.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, overload

from podwright_training.events import MetricsEvent, TrainEvent

INTEGER, NUMBER = "q", "d"  # types of arrays


class _Column:
    """Values of one field, in the order of events; ``None`` where an event has none."""

    def __init__(self, type_code: str) -> None:
        self._values = array(type_code)
        self._is_present = bytearray()

    def append(self, row: int, value: Any) -> None:
        """Add the value of a row; rows between the last one and this have none."""
        absent = row - len(self._values)
        self._values.extend([0] * (absent + 1))
        self._is_present.extend(bytes(absent + 1))
        self._values[row], self._is_present[row] = value, 1

    def __getitem__(self, row: int) -> Any:
        return self._values[row] if row < len(self._values) and self._is_present[row] else None


class _Texts(dict[int, Any]):
    """Values of a field that is no number, by row."""

    def append(self, row: int, value: Any) -> None:
        """Add the value of a row."""
        self[row] = value

    def __missing__(self, row: int) -> None:
        return None


class TrainEvents(Sequence[TrainEvent]):
    """Training steps; each access makes an event of its numbers."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column | _Texts] = {}
        self._passed: dict[tuple[str, ...], int] = {}  # number of each set of fields; most events have the same
        self._passed_names: list[tuple[str, ...]] = []
        self._passed_of_row = array("I")
        self._rows: Sequence[int] = range(0)

    def append(self, event: TrainEvent) -> None:
        """Add a step behind all others."""
        row = len(self._passed_of_row)
        for name, value in event.__dict__.items():
            if value is not None and name != "_passed":
                if name not in self._columns:
                    self._columns[name] = _Column(code) if (code := _type_code(name)) else _Texts()
                self._columns[name].append(row, value)
        passed = event.__dict__["_passed"]
        if passed not in self._passed:
            self._passed[passed] = len(self._passed_names)
            self._passed_names.append(passed)
        self._passed_of_row.append(self._passed[passed])
        self._rows = range(row + 1)

    def select(self, rows: Iterable[int]) -> TrainEvents:
        """Return some of the steps, in this order."""
        selected = TrainEvents()
        selected._columns, selected._passed_of_row = self._columns, self._passed_of_row
        selected._passed, selected._passed_names = self._passed, self._passed_names
        selected._rows = array("L", (self._rows[row] for row in rows))
        return selected

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TrainEvent: ...

    @overload
    def __getitem__(self, index: slice) -> TrainEvents: ...

    def __getitem__(self, index: int | slice) -> TrainEvent | TrainEvents:
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        return self._event(self._rows[index])

    def __iter__(self) -> Iterator[TrainEvent]:
        return map(self._event, self._rows)

    def column(self, name: str) -> list[Any]:
        """Return the values of one field, without making events."""
        column = self._columns.get(name)
        return [None] * len(self) if column is None else [column[row] for row in self._rows]

    def _event(self, row: int) -> TrainEvent:
        event = object.__new__(TrainEvent)
        values = {name: column[row] for name, column in self._columns.items()}
        event.__dict__.update(_defaults(), **values, _passed=self._passed_names[self._passed_of_row[row]])
        return event


class EventLog(Sequence[MetricsEvent]):
    """All events of a run, in the order in which they happened.

    Attributes:
        train: Training steps.
        sparse_events: All other events, which are few.
    """

    def __init__(self, events: Iterable[MetricsEvent]) -> None:
        self.train = TrainEvents()
        self.sparse_events: list[MetricsEvent] = []
        self._places = array("q")  # index in ``train``; or -1 and less: in ``sparse_events``
        for event in events:
            if isinstance(event, TrainEvent):
                self._places.append(len(self.train))
                self.train.append(event)
            else:
                self.sparse_events.append(event)
                self._places.append(-len(self.sparse_events))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> MetricsEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[MetricsEvent]: ...

    def __getitem__(self, index: int | slice) -> MetricsEvent | list[MetricsEvent]:
        if isinstance(index, slice):
            return [self._at(place) for place in self._places[index]]
        return self._at(self._places[index])

    def __iter__(self) -> Iterator[MetricsEvent]:
        return map(self._at, self._places)

    def steps_and_sparse_events(self) -> Iterator[tuple[int, int] | MetricsEvent]:
        """Yield the index in ``train`` and the step of each training step, and all other events, in order."""
        steps = self.train.column("step")
        return ((place, steps[place]) if place >= 0 else self.sparse_events[-place - 1] for place in self._places)

    def _at(self, place: int) -> MetricsEvent:
        return self.train[place] if place >= 0 else self.sparse_events[-place - 1]


@cache
def _defaults() -> dict[str, None]:
    return dict.fromkeys(declared.name for declared in fields(TrainEvent))


@cache
def _type_code(name: str) -> str:
    types = {declared.name: str(declared.type) for declared in fields(TrainEvent)}
    return {"int": INTEGER, "int | None": INTEGER, "float": NUMBER, "float | None": NUMBER}.get(types[name], "")
