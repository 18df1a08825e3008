"""Show the progress of a rehearsal: a live table, plain lines, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TextIO

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from podwright.errors import PodwrightError
from podwright.json_document import JsonObject
from podwright_common.drawing import drawing_console
from podwright_rehearsal.run import story

NOTE_EVERY_S = 5.0
NOTE_WIDTH = 110


class StepFailed(PodwrightError):  # noqa: N818 - it is what happened, as in Slurm's own states
    """A step failed: its name, the host, the last lines of its log, and the log's path."""

    def __init__(
        self, message: str, *, step: str = "", host: str = "this machine", log: Path | None = None, lines: int = 15
    ) -> None:
        super().__init__(message)
        self.message, self.step, self.host, self.log = message, step, host, log
        text = log.read_text(errors="replace") if log and log.exists() else ""
        self.tail = text.splitlines()[-lines:]


@dataclass
class StepRecord:
    """One step of the rehearsal: name, state, time and result."""

    name: str
    sentence: str  # One sentence about the step.
    state: str = "waiting"  # waiting | running | done | stopped | failed
    started_at_s: float = 0.0
    seconds: float = 0.0
    detail: str = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds so far while running, in total afterwards."""
        return time.monotonic() - self.started_at_s if self.state == "running" else self.seconds


@dataclass
class Progress:
    """Print the steps as plain lines, for logs and pipes."""

    names: list[str]
    out: TextIO = field(default_factory=lambda: sys.stdout)
    noted: str = ""
    noted_at_s: float = 0.0
    steps: list[StepRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [StepRecord(name, story.SENTENCES[name]) for name in self.names]

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while the steps run."""
        yield

    @contextmanager
    def step(self, name: str) -> Iterator[StepRecord]:
        """Time one step; it is marked failed if the body raises, and stopped at Ctrl-C."""
        record = next(item for item in self.steps if item.name == name)
        record.state, record.started_at_s = "running", time.monotonic()
        try:
            self.began(record)
            yield record
        except BaseException as error:  # Ctrl-C too: the step did not end well
            interrupted = isinstance(error, KeyboardInterrupt | GeneratorExit)  # the latter: between here and the body
            stopped = interrupted or any(it.state in {"stopped", "failed"} for it in self.steps)
            self._end(record, "stopped" if stopped else "failed")  # Steps beside a failed one are stopped.
            raise
        self._end(record, "done")

    def _end(self, record: StepRecord, state: str) -> None:
        record.seconds = time.monotonic() - record.started_at_s
        record.state = state
        self.ended(record)

    def began(self, record: StepRecord) -> None:
        """Report the begin of a step."""
        self.show(f"{record.name}: {record.sentence}")

    def foretell(self, duration: str) -> None:
        """Say how long all steps take."""
        self.show(f"{len(self.names)} steps; this takes {duration}")

    def note(self, line: str) -> None:
        """Show a program's last line, every few seconds and each once; the step's log has all of them."""
        if line != self.noted and time.monotonic() - self.noted_at_s > NOTE_EVERY_S:
            self.noted, self.noted_at_s = line, time.monotonic()
            short = " ".join(line.split())
            self.show(short if len(short) <= NOTE_WIDTH else f"{short[: NOTE_WIDTH - 1]}…")

    def show(self, line: str) -> None:
        """Show a line."""
        self._write(f"         {line}")

    def ended(self, record: StepRecord) -> None:
        """Report the end of a step."""
        mark = {"done": "ok", "failed": "FAILED"}.get(record.state, record.state)
        self._write(f"{record.seconds:6.1f} s {record.name}: {mark}  {record.detail}".rstrip())

    def summary(self, rows: list[tuple[str, str]]) -> None:
        """Report the summary."""
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            lines = value.replace("\n", "\n" + " " * (width + 2))
            self._write(f"{name:{width}}  {lines}")

    def _write(self, line: str) -> None:
        self.out.write(f"{line}\n")  # One write per line: steps that run side by side write, too.
        self.out.flush()


@dataclass(frozen=True, kw_only=True)
class _Began(JsonObject):
    event: Literal["began"] = "began"
    step: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class _Note(JsonObject):
    event: Literal["note"] = "note"
    line: str


@dataclass(frozen=True, kw_only=True)
class _Ended(JsonObject):
    event: Literal["ended"] = "ended"
    name: str
    sentence: str
    state: Literal["done", "stopped", "failed"]
    seconds: float
    detail: str


@dataclass(frozen=True, kw_only=True)
class _Summary(JsonObject):
    """Figures of the whole rehearsal, by their name."""

    event: Literal["summary"] = "summary"
    figures: dict[str, str] = field(metadata={"spread": True})


Rehearse = Annotated[_Began | _Note | _Ended | _Summary, "A line of `podwright rehearse --json`."]


class JsonProgress(Progress):
    """Print one JSON object a line."""

    def began(self, record: StepRecord) -> None:
        """Report the begin of a step."""
        self._line(_Began(step=record.name, sentence=record.sentence))

    def show(self, line: str) -> None:
        """Show a line."""
        self._line(_Note(line=line))

    def ended(self, record: StepRecord) -> None:
        """Report the end of a step."""
        self._line(_Ended.of(record))

    def summary(self, rows: list[tuple[str, str]]) -> None:
        """Report the summary as one object."""
        self._line(_Summary(figures=dict(rows)))

    def _line(self, event: JsonObject) -> None:
        self._write(json.dumps(event.to_dict()))


class LiveProgress(Progress):
    """Draw a live table, for terminals."""

    STYLES = {"waiting": "dim", "running": "bold", "done": "", "stopped": "", "failed": "bold red"}  # noqa: RUF012 - read only

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.console = drawing_console()
        self.line = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the table until the steps end; its last state stays on the screen."""
        with Live(get_renderable=self._picture, console=self.console, refresh_per_second=8):
            yield

    def began(self, record: StepRecord) -> None:
        """Show a line about the current work below the table."""
        self.line = record.sentence

    def foretell(self, duration: str) -> None:
        """Say how long all steps take, above the table."""
        self.console.print(f"{len(self.names)} steps; this takes {duration}", style="dim")

    def note(self, line: str) -> None:
        """Show the line below the table until the next."""
        self.line = line

    def ended(self, record: StepRecord) -> None:
        """Clear the line below the table, which shows the step."""
        del record
        self.line = ""

    def summary(self, rows: list[tuple[str, str]]) -> None:
        """Draw the summary as a table."""
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        self.console.print(table)

    def _picture(self) -> Group:
        table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
        for record in self.steps:
            table.add_row(
                self._mark(record),
                Text(record.name, style=self.STYLES[record.state]),
                Text(f"{record.elapsed_s:5.1f} s" if record.state != "waiting" else "", style="cyan"),
                Text(record.detail),
            )
        return Group(table, Text(self.line, style="dim", overflow="ellipsis", no_wrap=True))

    @staticmethod
    def _mark(record: StepRecord) -> Spinner | Text:
        if record.state == "running":
            return Spinner("dots")
        return Text({"done": "✓", "failed": "✗"}.get(record.state, "·"))


def progress_for(names: list[str], *, as_json: bool) -> Progress:
    """Return the progress for JSON, a terminal, or else plain lines."""
    if as_json:
        return JsonProgress(names)
    return LiveProgress(names) if sys.stdout.isatty() else Progress(names)
