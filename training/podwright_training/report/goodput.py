"""Account for the time of a run: the share that made progress, and the causes of the rest.

The metrics' events divide the time from the first one to the last ``start``, ``train`` or ``end``, and every second
belongs to one kind. Where events do not say more, the time between two starts is one of waiting, but for the seconds
for which the later process existed. ``membership`` events, of elastic runs, say more.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from podwright_training.events import EndEvent, MembershipEvent, MetricsEvent, StartEvent, TrainEvent
from podwright_training.failures import failures

KINDS = {
    "productive": "steps that count",
    "recomputing": "steps done again, or lost",
    "saving": "waiting for checkpoints",
    "validating": "validation",
    "detecting": "until a failure was noticed",
    "waiting": "waiting for nodes",
    "restarting": "starting processes, loading, first steps",
    "other": "everything else",
}
OF_AN_INTERRUPTION = ("detecting", "waiting", "restarting", "recomputing")
UNKNOWN = "not known"
STOPPED = "a signal, as at Slurm's time limit"
HOST = re.compile(r"\bon ([\w.-]*\w)")


@dataclass(frozen=True)
class TimeDocument:
    """Time of a run that went into one thing; `steps` are as many steps as it would have been."""

    kind: str
    meaning: str
    seconds: float
    share: float
    steps: float | None
    usd: float | None


@dataclass(frozen=True)
class InterruptionDocument:
    """A stop of a run, and the time that it cost."""

    cause: str
    host: str | None
    seconds: float


@dataclass(frozen=True)
class GoodputDocument:
    """The share of a run's time that went into steps which count."""

    share: float | None
    predicted_share: float | None
    seconds: float
    kinds: list[TimeDocument]
    interruptions: list[InterruptionDocument]


@dataclass
class RunInterruption:
    """A stop of training and its cost, until every step before it is done again."""

    cause: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def host(self) -> str | None:
        """Return the host that the cause names."""
        match = HOST.search(self.cause)
        return match[1] if match else None

    @property
    def lost_s(self) -> float:
        """Return the seconds that it cost."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class RunGoodput:
    """The seconds of a run by kind.

    Attributes:
        seconds: By the names in ``KINDS``; their sum is ``total_s``.
        step_s: Usual time of a step; 0 before the first.
        interruptions: All starts after the first, in order.
        predicted: Share that ``podwright plan`` predicts for so many accelerators, if that is known.
    """

    seconds: dict[str, float]
    step_s: float
    interruptions: list[RunInterruption]
    predicted: float | None

    @property
    def total_s(self) -> float:
        """Return the seconds from the first event to the last that counts."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """Return the share of the time that made progress."""
        return self.seconds["productive"] / self.total_s if self.total_s else None

    def rows(self, usd_per_hour: float | None = None) -> Iterator[TimeDocument]:
        """Yield each kind with its seconds, as a share, in steps and, with a price, in dollars."""
        for name, seconds in self.seconds.items():
            yield TimeDocument(
                kind=name,
                meaning=KINDS[name],
                seconds=round(seconds, 3),
                share=seconds / self.total_s if self.total_s else 0.0,
                steps=seconds / self.step_s if self.step_s else None,
                usd=None if usd_per_hour is None else seconds / 3600 * usd_per_hour,
            )

    def causes(self) -> list[tuple[str, str, int, float]]:
        """Return host, cause, number and seconds of the interruptions, the costliest first."""
        by_cause: dict[tuple[str, str], list[float]] = {}
        for interruption in self.interruptions:
            by_cause.setdefault((interruption.host or "", interruption.cause), []).append(interruption.lost_s)
        rows = [(host, cause, len(lost), sum(lost)) for (host, cause), lost in by_cause.items()]
        return sorted(rows, key=lambda row: row[3], reverse=True)

    def document(self, usd_per_hour: float | None = None) -> GoodputDocument:
        """Return the part of the report's document about this run."""
        return GoodputDocument(
            share=self.share,
            predicted_share=self.predicted,
            seconds=round(self.total_s, 3),
            kinds=list(self.rows(usd_per_hour)),
            interruptions=[
                InterruptionDocument(interruption.cause, interruption.host, round(interruption.lost_s, 3))
                for interruption in self.interruptions
            ],
        )


def account(events: Sequence[MetricsEvent]) -> RunGoodput:
    """Account for the time of a run's events, which have ``elapsed_s`` where their time is known."""
    books = _Books()
    in_vain: list[MembershipEvent] = []  # generations that ended before a start
    memberships, membership = _memberships_of_starts(events), None
    steps_s = array("d")
    for event in events:
        if isinstance(event, TrainEvent) and event.step_s:
            steps_s.append(event.step_s)
        if event.elapsed_s is None:
            continue
        if isinstance(event, StartEvent):
            membership = next(memberships)
            books.start(event, membership, in_vain)
            in_vain = []
        elif isinstance(event, MembershipEvent) and event is not membership:
            in_vain.append(event)
        elif isinstance(event, TrainEvent):
            books.steps(event)
        elif isinstance(event, EndEvent):
            books.end(event)
    return RunGoodput(books.seconds, median(steps_s) if steps_s else 0.0, books.interruptions, _predicted(events))


class _Books:
    """The seconds so far, by kind."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.interruptions: list[RunInterruption] = []
        self._now = 0.0
        self._step = 0
        self._highest = 0  # step that was ever done
        self._step_s = 0.0  # Seconds per step at the last log line.
        self._is_fresh = False  # no step since the start
        self._has_started = False
        self._reason = UNKNOWN  # The reason of the last end event.

    def start(
        self, event: StartEvent, membership: MembershipEvent | None, in_vain: Sequence[MembershipEvent] = ()
    ) -> None:
        """Account for the time before a start; after the first one it is an interruption's.

        Args:
            event: Of the start.
            membership: Of its generation, if the run is elastic.
            in_vain: Of generations before it that did not come so far.
        """
        remaining_s = self._take(event)
        for change in (*in_vain, membership):
            if self._has_started:
                self.interruptions.append(RunInterruption((change and change.cause) or self._reason))
            for kind, seconds in _seconds_of(change).items():
                remaining_s -= self._add(kind, min(remaining_s, seconds))
        if membership and self._has_started:
            remaining_s = self._steps_without_lines(event, membership, remaining_s)
        elif not membership:
            remaining_s -= self._add("restarting", min(remaining_s, _seconds(event.process_s)))
        self._add("waiting" if self._has_started else "restarting", remaining_s)
        self._step, self._is_fresh, self._has_started, self._reason = event.step, True, True, UNKNOWN

    def _steps_without_lines(self, event: StartEvent, membership: MembershipEvent, remaining_s: float) -> float:
        """Account for the steps since the last line; return the remaining seconds, without training."""
        began = event.step
        kept_steps = max(0, began - self._step)
        # The step that was under way is lost, too.
        lost_steps = max(0, began + (membership.lost_steps or 0) - max(began, self._step)) + 1
        remaining_s -= self._add("productive", min(remaining_s, kept_steps * self._step_s))
        return remaining_s - self._add("recomputing", min(remaining_s, lost_steps * self._step_s))

    def steps(self, event: TrainEvent) -> None:
        """Account for the steps since the last event that counts."""
        remaining_s = self._take(event)
        remaining_s -= self._add("saving", min(remaining_s, _seconds(event.saving_s)))
        remaining_s -= self._add("validating", min(remaining_s, _seconds(event.validating_s)))
        step = event.step
        done = max(0, step - self._step)
        self._step_s = _seconds(event.step_s)
        work = min(remaining_s, done * self._step_s)
        remaining_s -= work
        if self._is_fresh:
            work -= self._add("restarting", min(work, _seconds(event.first_step_s)))
        again = max(0, min(step, self._highest) - self._step)
        work -= self._add("recomputing", work * again / done if done else 0.0)
        self._add("productive", work)
        self._add("other", remaining_s)
        self._step, self._highest, self._is_fresh = step, max(step, self._highest), False

    def end(self, event: EndEvent) -> None:
        """Account for the time after the last line of steps."""
        remaining_s = self._take(event)
        remaining_s -= self._add("saving", min(remaining_s, _seconds(event.saving_s)))
        remaining_s -= self._add("validating", min(remaining_s, _seconds(event.validating_s)))
        self._add("other", remaining_s)
        self._reason = STOPPED if event.reason == "signal" else UNKNOWN

    def _take(self, event: MetricsEvent) -> float:
        """Return the seconds from the last event that counts to this one."""
        passed = max(0.0, (event.elapsed_s or 0.0) - self._now)
        self._now += passed
        return passed

    def _add(self, kind: str, seconds: float) -> float:
        self.seconds[kind] += seconds
        if self.interruptions and kind in OF_AN_INTERRUPTION:
            of_last = self.interruptions[-1].seconds
            of_last[kind] = of_last.get(kind, 0.0) + seconds
        return seconds


def _memberships_of_starts(events: Iterable[MetricsEvent]) -> Iterator[MembershipEvent | None]:
    """Yield the event with the cause of each start, which is written after the first step; ``None`` without one."""
    changes = [event for event in events if isinstance(event, StartEvent | MembershipEvent)]
    timed = [event for event in changes if event.elapsed_s is not None]
    for event, following in zip(timed, [*timed[1:], None], strict=True):
        if isinstance(event, StartEvent):
            yield following if isinstance(following, MembershipEvent) else None


def _seconds_of(change: MembershipEvent | None) -> dict[str, float]:
    """Return the seconds that a change of nodes took, by kind."""
    if change is None:
        return {}
    return {
        "detecting": _seconds(change.detecting_s) + _seconds(change.stopping_s),
        "waiting": _seconds(change.waiting_s),
        "restarting": _seconds(change.restarting_s) + _seconds(change.loading_s),
    }


def _seconds(value: float | None) -> float:
    return max(0.0, value or 0.0)


def _predicted(events: Sequence[MetricsEvent]) -> float | None:
    starts = [event for event in events if isinstance(event, StartEvent)]
    if not starts or not starts[-1].parameters:
        return None
    largest = max(event.world_size for event in starts)
    return failures(largest, parameters=starts[-1].parameters).goodput
