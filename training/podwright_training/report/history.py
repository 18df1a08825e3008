"""Read the history of a run from its metrics.

A run that went back to a checkpoint, by a restart or a rollback, continues from there: its earlier events of later
steps do not count.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from pathlib import Path
from typing import Any, TypeVar

from podwright_common.yaml_document import YamlFileError, load_values
from podwright_training.errors import UserError, shortened
from podwright_training.events import (
    LARGEST_WHOLE,
    CheckpointEvent,
    EndEvent,
    GuardEvent,
    MembershipEvent,
    MetricsEvent,
    MixtureEvent,
    OffenderEvent,
    OverflowEvent,
    ReadEvent,
    SampleEvent,
    StartEvent,
    StepEvent,
    StragglerEvent,
    TrainEvent,
    ValidationEvent,
)
from podwright_training.jobs.spec import read_written
from podwright_training.report.event_log import EventLog, TrainEvents
from podwright_training.report.goodput import RunGoodput, account
from podwright_training.run_folder import RunFolder

NOTABLE = (
    StartEvent, MixtureEvent, MembershipEvent, OffenderEvent, GuardEvent, OverflowEvent, StragglerEvent,
    CheckpointEvent, EndEvent
)  # fmt: skip
COUNTED = ("max_context_width", "max_steps")  # options that figures are computed from
CHECKPOINT = re.compile(r"step-(\d+)$")

StepEventT = TypeVar("StepEventT", bound=StepEvent)


class ReportError(UserError):
    """The run has no results to report yet."""


@dataclass(frozen=True)
class Restart:
    """A start of a run after its first start."""

    stopped_after: int  # the last step logged before
    resumed_after: int  # the step of the checkpoint it resumed from
    world_size: int


@dataclass(frozen=True)
class History:
    """Events that count, in the order of steps."""

    name: str
    config: dict[str, Any]  # Empty without a config.yaml.
    starts: list[StartEvent]
    restarts: list[Restart]
    train: Sequence[TrainEvent]  # steps whose loss is a number
    not_finite: list[int]  # the other steps
    validation: list[ValidationEvent]
    samples: list[SampleEvent]  # The model's continuations of sample_prompts.
    notable: list[MetricsEvent]  # all other events, in the order they happened
    end: EndEvent | None
    reads: list[ReadEvent] = field(default_factory=list)  # What each source of a mixture has given, at each checkpoint.
    goodput: RunGoodput = field(default_factory=lambda: account([]))

    @classmethod
    def of(cls, folder: RunFolder, *, last_bytes: int | None = None) -> History:
        """Read the metrics, or their last bytes, and the configuration.

        Raises:
            ReportError: No step was logged, or the configuration is damaged.
        """
        if not folder.root.is_dir():
            raise ReportError(f"run_dir {folder.root} does not exist")
        events = EventLog(_with_elapsed(folder.events(last_bytes=last_bytes)))
        steps = _steps_that_count(events)
        finite = [math.isfinite(loss) for loss in steps.column("loss")]
        train = steps.select(compress(count(), finite))
        not_finite = [step for step, is_finite in zip(steps.column("step"), finite, strict=True) if not is_finite]
        if not steps:
            raise ReportError(f"{folder.metrics} has no training step yet: has the job started? See {folder.log}")
        if not train:
            why = f"{not_a_number(not_finite)}: look at {folder.log}, and lower learning_rate or check the data"
            raise ReportError(f"{folder.metrics} has no curve: {why}")
        return cls(
            name=_shown(folder.root.absolute().name),
            config=_job(folder.job) if folder.job.exists() else _configuration(folder.config),
            starts=[event for event in events.sparse_events if isinstance(event, StartEvent)],
            restarts=list(_restarts(events)),
            train=train,
            not_finite=not_finite,
            validation=_that_count(events.sparse_events, ValidationEvent),
            samples=_that_count(events.sparse_events, SampleEvent),
            reads=_that_count(events.sparse_events, ReadEvent),
            notable=[event for event in events.sparse_events if isinstance(event, NOTABLE)],
            end=_end(events.sparse_events),
            goodput=account(events),
        )

    @property
    def clock_went_back(self) -> bool:
        """Return whether the last step was logged at an earlier time than an event before it."""
        times = [event.time for event in (*self.starts, *self.train) if event.time is not None]
        last_time = self.train[-1].time
        return last_time is not None and last_time < max(times)

    @property
    def last_step(self) -> int:
        """Return the last step logged."""
        return self.train[-1].step

    @property
    def hours(self) -> float | None:
        """Return the hours between the first start and the last training step, restarts and waits included."""
        return elapsed_hours(self.train[-1])

    def tokens(self, event: TrainEvent) -> int | None:
        """Return the tokens seen by the end of a training step; None where the context width is unknown."""
        if event.tokens is not None:
            return event.tokens
        width = self.config.get("max_context_width")
        return None if width is None or event.sequences is None else int(width) * event.sequences


def _job(path: Path) -> dict[str, Any]:
    """Return the facts of another trainer's job, by our trainer's names."""
    spec = read_written(path)
    steps = {"max_steps": spec.model.steps} if spec.model.steps else {}
    return {**steps, "launcher": spec.launcher, "command": " ".join(spec.command)}


def _configuration(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = load_values(path) or {}
    except YamlFileError as error:
        raise ReportError(str(error)) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ReportError(f"{path} is not the configuration of a run: need `option: value` lines")
    for name in COUNTED:
        value = content.get(name)
        if value is not None and not (type(value) is int and 0 < value < LARGEST_WHOLE):
            raise ReportError(f"{path}: {name}: got {shortened(value)}, need a whole number from 1")
    return content


def distinct_names(folders: Sequence[RunFolder]) -> list[str]:
    """Return as much of each run's path as differs."""
    paths = [folder.root.absolute().parts for folder in folders]
    for length in range(1, max(map(len, paths)) + 1):
        names = [_shown("/".join(parts[-length:])) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def _shown(name: str) -> str:
    """Return the name of a file as a page can have it: it may be no text."""
    return os.fsencode(name).decode(errors="backslashreplace")


def not_a_number(steps: Sequence[int]) -> str:
    """Return a sentence about steps whose loss is NaN or infinite."""
    return f"the loss of {len(steps)} steps is not a finite number, the first at step {steps[0]}"


def elapsed_hours(event: MetricsEvent) -> float | None:
    """Return the hours from the first event with a time to this one."""
    return None if event.elapsed_s is None else event.elapsed_s / 3600


def _with_elapsed(events: Iterable[MetricsEvent]) -> Iterator[MetricsEvent]:
    """Add the seconds since the first event; they do not decrease when a clock was set back."""
    start_time, previous_s, lost_s = None, 0.0, 0.0
    for event in events:
        if event.time is None:
            yield event
            continue
        start_time = event.time if start_time is None else start_time
        lost_s = max(lost_s, previous_s - (event.time - start_time))
        previous_s = event.time - start_time + lost_s
        yield event.with_values(elapsed_s=previous_s)


def _that_count(events: Iterable[MetricsEvent], event_class: type[StepEventT]) -> list[StepEventT]:
    """Return the events of a class, the last one of each step, without steps that were rolled back."""
    by_step: dict[int, StepEventT] = {}
    for event in events:
        back = _went_back_to(event)
        if back is not None:
            by_step = {step: earlier for step, earlier in by_step.items() if step <= back}
        if isinstance(event, event_class):
            by_step[event.step] = event
    return [by_step[step] for step in sorted(by_step)]


def _steps_that_count(events: EventLog) -> TrainEvents:
    """Return the last event of each training step, without steps that were rolled back."""
    place_by_step: dict[int, int] = {}
    for event in events.steps_and_sparse_events():
        if isinstance(event, MetricsEvent):
            back = _went_back_to(event)
            if back is not None:
                place_by_step = {step: place for step, place in place_by_step.items() if step <= back}
        else:
            place, step = event
            place_by_step[step] = place
    return events.train.select(place_by_step[step] for step in sorted(place_by_step))


def _went_back_to(event: MetricsEvent) -> int | None:
    """Return the step from which a start or a rollback went on."""
    if isinstance(event, StartEvent):
        return event.step
    if isinstance(event, GuardEvent) and (match := CHECKPOINT.search(event.checkpoint or "")):
        return int(match[1])
    return None


def _restarts(events: EventLog) -> Iterator[Restart]:
    last_step: int | None = None  # none before the first start
    for event in events.steps_and_sparse_events():
        if isinstance(event, StartEvent):
            if last_step is not None:
                yield Restart(stopped_after=last_step, resumed_after=event.step, world_size=event.world_size)
            last_step = event.step
        elif not isinstance(event, MetricsEvent):
            _, last_step = event


def _end(events: list[MetricsEvent]) -> EndEvent | None:
    """Return the end event of the last start; None while it runs, or if it was killed."""
    latest_event = next((event for event in reversed(events) if isinstance(event, StartEvent | EndEvent)), None)
    return latest_event if isinstance(latest_event, EndEvent) else None
