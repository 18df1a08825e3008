"""Read the history of a run from its metrics.

A restarted run wrote some steps twice: the last event of a step counts, as training continued from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder

NOTABLE = ("start", "guard", "overflow", "straggler", "checkpoint", "end")


class ReportError(UserError):
    """The run has nothing to report yet."""


@dataclass(frozen=True)
class Restart:
    """Start after the first one."""

    stopped_after: int  # the last step logged before
    resumed_after: int  # the step of the checkpoint it resumed from
    world_size: int


@dataclass(frozen=True)
class History:
    """Events that count, in the order of steps."""

    name: str
    config: dict[str, Any]  # of config.yaml; empty if there is none
    starts: list[dict[str, Any]]
    restarts: list[Restart]
    train: list[dict[str, Any]]  # steps whose loss is a number
    not_finite: list[int]  # the other steps
    validation: list[dict[str, Any]]
    samples: list[dict[str, Any]]  # what the model made of sample_prompts
    notable: list[dict[str, Any]]  # all other events, in the order they happened
    end: dict[str, Any] | None

    @classmethod
    def of(cls, folder: RunFolder, *, last_bytes: int | None = None) -> History:
        """Read the metrics, or their last bytes, and the configuration.

        Raises:
            ReportError: No step was logged, or the configuration is damaged.
        """
        events = list(folder.events(last_bytes=last_bytes))
        steps = _last_per_step(events, "train")
        train = [event for event in steps if math.isfinite(event["loss"])]
        if not train:
            raise ReportError(f"{folder.metrics} has no training step yet: has the job started? See {folder.log}")
        return cls(
            name=folder.root.absolute().name,
            config=_configuration(folder.config) if folder.config.exists() else {},
            starts=[event for event in events if event["event"] == "start"],
            restarts=list(_restarts(events)),
            train=train,
            not_finite=[event["step"] for event in steps if not math.isfinite(event["loss"])],
            validation=_last_per_step(events, "validation"),
            samples=_last_per_step(events, "sample"),
            notable=[event for event in events if event["event"] in NOTABLE],
            end=_end(events),
        )

    @property
    def last_step(self) -> int:
        """Return the last step logged."""
        return int(self.train[-1]["step"])

    @property
    def began(self) -> float | None:
        """Return when the first start was written, in seconds since 1970; None where no time is known."""
        first = (self.starts or self.train)[0]
        return first.get("time")

    @property
    def hours(self) -> float | None:
        """Return the hours between the first start and the last training step, restarts and waits included."""
        end = self.train[-1].get("time")
        return None if self.began is None or end is None else (end - self.began) / 3600

    def tokens(self, event: dict[str, Any]) -> int | None:
        """Return the tokens seen by the end of a training step; None where the context width is unknown."""
        width, sequences = self.config.get("max_context_width"), event.get("sequences")
        return None if width is None or sequences is None else int(width) * int(sequences)


def _configuration(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ReportError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("max_context_width", 1), int):
        raise ReportError(f"{path} is not the configuration of a run")
    return content


def _last_per_step(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    by_step = {event["step"]: event for event in events if event["event"] == kind}
    return [by_step[step] for step in sorted(by_step)]


def _restarts(events: Iterable[dict[str, Any]]) -> Iterator[Restart]:
    step: int | None = None  # none before the first start
    for event in events:
        if event["event"] == "start":
            if step is not None:
                yield Restart(stopped_after=step, resumed_after=event["step"], world_size=event["world_size"])
            step = event["step"]
        elif event["event"] == "train":
            step = event["step"]


def _end(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the end of the last start; None while it runs, or if it was killed."""
    last = next((event for event in reversed(events) if event["event"] in ("start", "end")), None)
    return last if last and last["event"] == "end" else None
