"""``podwright-train follow``: read the log of a job of another trainer, and write its steps as our metrics.

``launch --job`` starts it beside the first rank. It only reads: if it ends, the job continues.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from podwright_common.regular_file import open_regular
from podwright_training.errors import UserError
from podwright_training.events import MetricsEvent, TrainEvent
from podwright_training.jobs.log_reader import LONGEST_LINE, LogProgress, LogReader
from podwright_training.jobs.spec import JobSpec, read_written
from podwright_training.run_claim import claim_of_run
from podwright_training.run_folder import RunFolder

POLL_S = 0.5
IDLE_POLLS = 4  # A step whose lines may be incomplete is written after this many polls without a line.
LINE_S = 10  # The expressions get this long on one line: the batch script waits for this process.
CHUNK_BYTES = 1 << 16
LINE_BYTES = 4 * LONGEST_LINE  # UTF-8 needs up to 4 bytes for a character.
LAST_BYTES = 1 << 20  # The last events of an earlier job are within this many bytes.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train follow``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run, with the job that launch wrote")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks of the job")
    parser.add_argument("--job-id", default="", metavar="ID", help="Slurm's id of the job, for its start event")
    parser.add_argument("--log", type=Path, metavar="FILE", help="log to read. Default: the run's")
    parser.add_argument("--from-byte", type=int, default=0, metavar="N", help="byte of the log to start at. Default: 0")


def run(args: argparse.Namespace) -> int:
    """Follow the log until the job's script writes that the program has ended."""
    folder = RunFolder(args.run_dir)
    claim_of_run(folder).check()  # the batch script has claimed it for its job
    spec = read_written(folder.job)
    follower = _Follower(folder, args.log or folder.log, spec, ranks=args.ranks, job_id=args.job_id)
    follower.catch_up(args.from_byte)
    follower.follow(args.from_byte)
    return 0


class _Line(NamedTuple):
    """A line of the log; its text is ``None`` if there is no new line."""

    text: str | None
    begin: int  # bytes
    end: int


class _Follower:
    """Writes the events of a log, each with the byte at which the next follower continues."""

    def __init__(self, folder: RunFolder, log: Path, spec: JobSpec, *, ranks: int, job_id: str) -> None:
        self._folder, self._log = folder, log
        self._reader = partial(LogReader, spec, world_size=ranks, job_id=job_id)
        self._values_follow = spec.log.all_patterns.step_line == "before"
        signal.signal(signal.SIGALRM, _too_slow)

    def catch_up(self, end: int) -> None:
        """Read lines that an earlier follower, killed with its node, left unread before a byte of the log.

        Its lines get the time of its last event: they were written shortly after it.
        """
        last_event = next(iter(deque(self._folder.events(last_bytes=LAST_BYTES), 1)), MetricsEvent())
        begin, at = last_event.log_byte or 0, last_event.time or round(time.time(), 3)
        if 0 < begin < end:
            reader = self._reader(before=_before(self._folder), continues=True)
            for line in _lines(self._log, begin, end):
                self._write(reader.feed(line.text or "", at), line)
            self._write(reader.flush(at), _Line(None, end, end))

    def follow(self, begin: int) -> None:
        """Read the log until the job's script writes that the program has ended."""
        reader, idle = self._reader(before=_before(self._folder)), 0
        for line in _lines(self._log, begin):
            now = round(time.time(), 3)
            idle = 0 if line.text is not None else idle + 1
            if line.text is not None:
                self._write(reader.feed(line.text, now), line)
            elif idle == IDLE_POLLS:
                self._write(reader.flush(now), line)
            if reader.ended is not None:
                return

    def _write(self, events: Iterable[MetricsEvent], line: _Line) -> None:
        """Append the events that a line completed; where values follow a step, it may be the next one's first."""
        signal.alarm(LINE_S)
        for event in events:
            self._folder.append(event.with_values(log_byte=line.begin if self._values_follow else line.end))
        signal.alarm(0)


def _too_slow(*_: object) -> None:
    """Raise an error: an expression such as ``(a+)+b`` can take years."""
    raise UserError(f"log.patterns: a line took over {LINE_S} s; an expression has nested repetition, such as (a+)+")


def _before(folder: RunFolder) -> LogProgress | None:
    """Return step, tokens and stride of the last steps in the metrics."""
    last_steps = list(deque(folder.events_of(TrainEvent, last_bytes=LAST_BYTES), 2))
    if not last_steps:
        return None
    last_step = last_steps[-1]
    stride = last_step.step - last_steps[0].step if len(last_steps) > 1 else last_step.step
    return LogProgress(last_step.step, last_step.tokens or 0.0, max(0, stride))


def _lines(path: Path, begin: int, end: int | None = None) -> Iterator[_Line]:
    """Yield the lines of a file up to ``end``, or else as it grows; the parts of a progress bar are lines, too.

    A line's end beyond what the reader looks at is left out. A file that was emptied is read from its beginning.
    """
    while not path.exists():
        yield _Line(None, begin, begin)
        time.sleep(POLL_S)
    try:
        opened = open_regular(path, follow_links=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    with opened as file:
        line_begin, unfinished = file.seek(begin), b""
        while end is None or file.tell() < end:
            before = file.tell()
            chunk = file.read(CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - before))
            *lines, tail = chunk.replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                before += len(line) + 1
                yield _Line((unfinished + line).decode(errors="replace"), line_begin, before)
                line_begin, unfinished = before, b""
            unfinished = (unfinished + tail)[:LINE_BYTES]
            if chunk:
                continue
            if end is not None:
                return
            if path.exists() and path.stat().st_size < file.tell():
                line_begin, unfinished = file.seek(0), b""
            yield _Line(None, line_begin, line_begin)
            time.sleep(POLL_S)
