"""Turn a trainer's output into events of ``metrics.jsonl``. Imports no torch, reads no clock and no file.

Of an event, a report needs no more than step and loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from podwright_training.events import EndEvent, MetricsEvent, StartEvent, TrainEvent, diverging_names
from podwright_training.hardware import rank_peak_flops
from podwright_training.jobs.patterns import ESCAPES
from podwright_training.jobs.spec import JobSpec

LONGEST_LINE = 4096  # characters that expressions see
LARGEST = 2.0**63  # Larger counts are read as damage.
# Written by the job's scripts between the program's lines.
STARTED = "=== program starts"
ENDED = "=== program ended with"
_ENDED = re.compile(rf"^{ENDED} (\d+)$")
_CHECKPOINT = re.compile(rf"^{STARTED}, checkpoint .*?(\d+)/?$")


@dataclass(frozen=True)
class LogProgress:
    """Step and tokens of the events that were written so far."""

    step: int = 0
    tokens: float = 0.0
    stride: int = 0  # steps between two lines


class LogReader:
    """Reads lines and yields events: ``start`` at the first step after each start, ``train`` for each step, ``end``.

    A step that was logged since the last start is skipped, because other ranks may print it too.

    Args:
        spec: Job whose output it is.
        world_size: Ranks of the job.
        job_id: Slurm's.
        before: Steps and tokens of the run's last event, from an earlier job.
        continues: Whether the first lines are of the program that wrote the last event.
    """

    def __init__(
        self,
        spec: JobSpec,
        *,
        world_size: int,
        job_id: str = "",
        before: LogProgress | None = None,
        continues: bool = False,
    ) -> None:
        self._spec, self._world_size, self._job_id = spec, world_size, job_id
        self._patterns = spec.log.all_patterns
        self._compiled = {name: re.compile(text) for name, text in self._patterns.by_name.items()}
        self._past = before or LogProgress()
        self._is_started = continues
        self._started_at: float | None = None
        self._checkpoint: int | None = None  # the number in the name of the one that the program started from
        self._last_at: float | None = None
        self._pending: dict[str, float] = {}
        self.ended: int | None = None  # the program's exit status

    @property
    def can_read(self) -> bool:
        """Return whether the job says how to read its log."""
        return {"step", "loss"} <= self._compiled.keys()

    def feed(self, line: str, at: float) -> Iterator[MetricsEvent]:
        """Yield the events that a line completes.

        Args:
            line: Without its end.
            at: Time of the line, seconds since 1970.
        """
        text = ESCAPES.sub("", line[:LONGEST_LINE])
        if text.startswith(STARTED):
            yield from self.flush(at)
            self._is_started, self._started_at, self._last_at, self._pending = False, at, None, {}
            self._checkpoint = int(checkpoint_match[1]) if (checkpoint_match := _CHECKPOINT.match(text)) else None
        elif match := _ENDED.match(text):
            yield from self.flush(at)
            self.ended = int(match[1])
            if self.ended == 0 and self._is_started:
                yield EndEvent(time=at, step=self._past.step, reason="the program's own")
        elif self.can_read:
            yield from self._read(text, at)

    def flush(self, at: float) -> Iterator[MetricsEvent]:
        """Yield the event of pending values when no further lines arrive."""
        if self._patterns.step_line == "before" and {"step", "loss"} <= self._pending.keys():
            yield from self._train(self._pending, at)
            self._pending = {}

    def _read(self, text: str, at: float) -> Iterator[MetricsEvent]:
        line_values = {
            name: value
            for name, pattern in self._compiled.items()
            if (match := pattern.search(text)) and (value := _number(match[1])) is not None and _can_be(name, value)
        }
        order = self._patterns.step_line or "same"
        if order == "same":
            if {"step", "loss"} <= line_values.keys():
                yield from self._train(line_values, at)
        elif order == "after":
            self._pending |= line_values
            if "step" in line_values and "loss" in self._pending:
                values, self._pending = self._pending, {}
                yield from self._train(values, at)
        else:
            if "step" in line_values:
                yield from self.flush(at)
                self._pending = {}
            self._pending |= line_values

    def _train(self, values: Mapping[str, float], at: float) -> Iterator[MetricsEvent]:
        """Yield the event of a step, after the start event if it is the first step since the start."""
        step = round(values["step"]) + 1 - self._patterns.first_step
        if self._is_started and step <= self._past.step:
            return
        steps = step - self._past.step if self._is_started else self._past.stride or step
        speed = self._speed(values, steps, at)
        if not self._is_started:
            yield self._start(self._step_before(step, steps), at, speed.get("step_s"))
        tokens = self._tokens(values, step, steps)
        self._past = LogProgress(step, tokens or 0.0, steps)
        self._last_at = at
        measures = {name: values[name] for name in ("lr", "grad_norm") if name in values}
        counts = {name: round(values[name]) for name in ("sequences", "batch_sequences") if name in values}
        counted = {"tokens": round(tokens)} if tokens else {}
        event = TrainEvent(time=at, step=step, loss=values["loss"])
        yield event.with_values(**measures, **counts, **counted, **speed)

    def _step_before(self, step: int, steps: int) -> int:
        """Return where a start began: the checkpoint's number if it can be its step, or a stride before the first line.

        Other numbers than a step's are further away, such as an epoch's.
        """
        before = max(0, step - steps)
        return self._checkpoint if self._checkpoint is not None and before <= self._checkpoint < step else before

    def _start(self, step: int, at: float, step_s: float | None) -> StartEvent:
        """Return the event of a start, dated before the steps that the line after it has."""
        began = at if self._started_at is None else self._started_at
        start_time = max(began, at - (step_s or 0.0) * max(1, self._past.stride))
        self._is_started = True
        self._past = LogProgress(step, self._past.tokens if step else 0.0, self._past.stride)
        model = self._spec.model
        event = StartEvent(
            time=round(start_time, 3),
            step=step,
            world_size=self._world_size,
            job_id=self._job_id,
            process_s=round(start_time - began, 3),
            launcher=self._spec.launcher,
        )
        if model.parameters:
            event = event.with_values(parameters=round(model.parameters))
        return event.with_values(flops_per_token=model.flops) if model.flops else event

    def _tokens(self, values: Mapping[str, float], step: int, steps: int) -> float | None:
        """Return the tokens so far, from the log, else from the job's numbers."""
        per_step = self._spec.model.tokens_per_step
        if "tokens" in values:
            return values["tokens"]
        if per_step:
            return step * per_step
        if "tokens_per_s" in values and "step_s" in values:
            return self._past.tokens + steps * values["tokens_per_s"] * values["step_s"]
        return None

    def _speed(self, values: Mapping[str, float], steps: int, at: float) -> dict[str, float]:
        """Return seconds per step, tokens per second and MFU, as far as they are known."""
        model, ranks = self._spec.model, self._world_size
        step_s = values.get("step_s") or values.get("step_ms", 0.0) / 1000
        if not step_s and self._last_at is not None and at > self._last_at:
            step_s = (at - self._last_at) / steps
        per_s = values.get("tokens_per_s") or values.get("tokens_per_s_per_rank", 0.0) * ranks
        if not per_s and model.tokens_per_step and step_s:
            per_s = model.tokens_per_step / step_s
        if not step_s and per_s and model.tokens_per_step:
            step_s = model.tokens_per_step / per_s
        speed = {"step_s": step_s, "tokens_per_s": per_s, "tokens_per_s_per_rank": per_s / ranks}
        if "sequences_per_s" in values:
            speed["samples_per_s"] = values["sequences_per_s"]
        peak = rank_peak_flops(model.accelerator)
        if peak and model.flops and per_s:
            speed["mfu"] = model.flops * per_s / ranks / peak
        return {name: round(value, 6) for name, value in speed.items() if value and math.isfinite(value)}


def _number(text: str | None) -> float | None:
    """Return the number in an expression's group; ``None`` if the group did not match, or is not a number."""
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


def _can_be(name: str, value: float) -> bool:
    """Return whether a value is plausible: only diverging values are infinite, and only a loss is below zero."""
    return name in diverging_names(TrainEvent) or (0 <= value < LARGEST)
