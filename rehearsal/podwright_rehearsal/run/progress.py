"""What a person or a machine sees while a rehearsal runs: a live table, plain lines, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from podwright.errors import PodwrightError

NOTE_EVERY_S = 5.0
NOTE_WIDTH = 150


class StepFailed(PodwrightError):  # noqa: N818 - it is what happened, as in Slurm's own states
    """A step did not do what it is for: which, where, the last lines of its log, and where the whole log is."""

    def __init__(self, message: str, *, host: str = "this machine", log: Path | None = None, lines: int = 15) -> None:
        super().__init__(message)
        self.message, self.host, self.log = message, host, log
        text = log.read_text(errors="replace") if log and log.exists() else ""
        self.tail = text.splitlines()[-lines:]


@dataclass
class StepRecord:
    """One step of the rehearsal: what it is for, how long it took, what it found."""

    name: str
    state: str = "waiting"  # waiting | running | done | failed
    started_at_s: float = 0.0
    seconds: float = 0.0
    detail: str = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds so far while running, in total afterwards."""
        return time.monotonic() - self.started_at_s if self.state == "running" else self.seconds


@dataclass
class Progress:
    """The steps so far, told as plain lines: the form for logs and pipes."""

    names: list[str]
    out: TextIO = field(default_factory=lambda: sys.stdout)
    noted: str = ""
    noted_at_s: float = 0.0
    steps: list[StepRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [StepRecord(name) for name in self.names]

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Whatever must be on the screen while the steps run."""
        yield

    @contextmanager
    def step(self, name: str) -> Iterator[StepRecord]:
        """Time one step; it is marked failed if the body raises."""
        record = next(item for item in self.steps if item.name == name)
        record.state, record.started_at_s = "running", time.monotonic()
        self.began(record)
        try:
            yield record
        except BaseException:
            self._end(record, "failed")
            raise
        self._end(record, "done")

    def _end(self, record: StepRecord, state: str) -> None:
        record.seconds = time.monotonic() - record.started_at_s
        record.state = state
        self.ended(record)

    def began(self, record: StepRecord) -> None:
        """A step began."""
        print(f"         {record.name} …", file=self.out, flush=True)

    def note(self, line: str) -> None:
        """What the running step's program printed last; told now and then and once, the whole is in the step's log."""
        if line != self.noted and time.monotonic() - self.noted_at_s > NOTE_EVERY_S:
            self.noted, self.noted_at_s = line, time.monotonic()
            self.told(line[:NOTE_WIDTH])

    def told(self, line: str) -> None:
        """Show such a line."""
        print(f"         {line}", file=self.out, flush=True)

    def ended(self, record: StepRecord) -> None:
        """A step ended, well or not."""
        mark = "ok" if record.state == "done" else "FAILED"
        print(f"{record.seconds:6.1f} s {record.name}: {mark}  {record.detail}".rstrip(), file=self.out, flush=True)

    def summary(self, rows: list[tuple[str, str]]) -> None:
        """The figures of the whole rehearsal."""
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            lines = value.replace("\n", "\n" + " " * (width + 2))
            print(f"{name:{width}}  {lines}", file=self.out, flush=True)


class JsonProgress(Progress):
    """One JSON object a line."""

    def began(self, record: StepRecord) -> None:
        """Tell the step's name."""
        self._line({"event": "began", "step": record.name})

    def told(self, line: str) -> None:
        """Tell the line."""
        self._line({"event": "note", "line": line})

    def ended(self, record: StepRecord) -> None:
        """Tell the whole record."""
        content = asdict(record)
        del content["started_at_s"]
        self._line({"event": "ended", **content})

    def summary(self, rows: list[tuple[str, str]]) -> None:
        """Tell the figures as one object."""
        self._line({"event": "summary", **dict(rows)})

    def _line(self, content: dict[str, object]) -> None:
        print(json.dumps(content), file=self.out, flush=True)


class LiveProgress(Progress):
    """A table that moves: the form for a terminal."""

    STYLES = {"waiting": "dim", "running": "bold", "done": "", "failed": "bold red"}  # noqa: RUF012 - read only

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.console = Console()
        self.line = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the table until the steps end; its last state stays on the screen."""
        with Live(get_renderable=self._picture, console=self.console, refresh_per_second=8):
            yield

    def began(self, record: StepRecord) -> None:
        """The table shows it."""
        del record
        self.line = ""

    def note(self, line: str) -> None:
        """Show the line below the table until the next."""
        self.line = line

    def ended(self, record: StepRecord) -> None:
        """The table shows it."""
        del record
        self.line = ""

    def summary(self, rows: list[tuple[str, str]]) -> None:
        """Draw the figures as a table."""
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), value)
        self.console.print(table)

    def _picture(self) -> Group:
        table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
        for record in self.steps:
            table.add_row(
                self._mark(record),
                Text(record.name, style=self.STYLES[record.state]),
                Text(f"{record.elapsed_s:5.1f} s" if record.state != "waiting" else "", style="cyan"),
                record.detail,
            )
        return Group(table, Text(self.line, style="dim", overflow="ellipsis", no_wrap=True))

    @staticmethod
    def _mark(record: StepRecord) -> Spinner | Text:
        if record.state == "running":
            return Spinner("dots")
        return Text({"done": "✓", "failed": "✗"}.get(record.state, "·"))


def progress_for(names: list[str], *, as_json: bool) -> Progress:
    """The form that fits where the output goes."""
    if as_json:
        return JsonProgress(names)
    return LiveProgress(names) if sys.stdout.isatty() else Progress(names)
