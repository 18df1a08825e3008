"""``podwright-train follow``: read the log of a job of another trainer, and write its steps as our metrics.

``launch --job`` starts it beside the first rank. It only reads: if it ends, the job goes on.
"""

from __future__ import annotations

import argparse
import codecs
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwright_training.errors import UserError
from podwright_training.jobs.log_reader import LONGEST_LINE, LogReader
from podwright_training.jobs.spec import JobSpec
from podwright_training.run_folder import RunFolder

POLL_S = 0.5
IDLE_POLLS = 4  # without a line, before a step whose lines may be incomplete is written
LINE_S = 10  # for the expressions on one line; the batch script waits for this process
LAST_BYTES = 1 << 20  # of the metrics of an earlier job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train follow``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run, with the job that launch wrote")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks of the job")
    parser.add_argument("--job-id", default="", metavar="ID", help="Slurm's id of the job, for its start event")
    parser.add_argument("--log", type=Path, metavar="FILE", help="log to read. Default: the run's")
    parser.add_argument("--from-byte", type=int, default=0, metavar="N", help="of the log. Default: 0, its beginning")


def run(args: argparse.Namespace) -> int:
    """Follow the log until the job's script writes that the program has ended."""
    folder = RunFolder(args.run_dir)
    try:
        spec = JobSpec.from_json(folder.job.read_text())
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"cannot read {folder.job}: {error}; `podwright-train launch --job` writes it") from error
    reader = LogReader(spec, world_size=args.ranks, job_id=args.job_id, before=_before(folder))
    idle = 0
    signal.signal(signal.SIGALRM, _too_slow)
    for line in _lines(args.log or folder.log, args.from_byte):
        now = round(time.time(), 3)
        idle = 0 if line is not None else idle + 1
        events = reader.feed(line, now) if line is not None else reader.flush(now) if idle == IDLE_POLLS else ()
        signal.alarm(LINE_S)
        for event in events:
            folder.append(event)
        signal.alarm(0)
        if reader.ended is not None:
            return 0
    return 0


def _too_slow(*_: object) -> None:
    """Give up: an expression such as ``(a+)+b`` tries for years."""
    raise UserError(f"log.patterns: a line took over {LINE_S} s; an expression repeats what is repeated, as (a+)+ does")


def _before(folder: RunFolder) -> dict[str, Any]:
    """Return step, tokens and stride of the last steps in the metrics."""
    last = list(deque(folder.events("train", last_bytes=LAST_BYTES), 2))
    if not last:
        return {}
    stride = last[-1]["step"] - last[0]["step"] if len(last) > 1 else last[-1]["step"]
    return {"step": last[-1]["step"], "tokens": last[-1].get("tokens"), "stride": max(0, stride)}


def _lines(path: Path, begin: int) -> Iterator[str | None]:
    """Yield the lines of a growing file, the parts of a progress bar too; ``None`` when nothing is new.

    A line's end beyond what the reader looks at is left out. A file that was emptied is read from its beginning.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    while not path.exists():
        yield None
        time.sleep(POLL_S)
    with path.open("rb") as file:
        file.seek(begin)
        while True:
            chunk = file.read(1 << 16)
            if not chunk:
                if path.exists() and path.stat().st_size < file.tell():
                    file.seek(0)
                yield None
                time.sleep(POLL_S)
                continue
            *lines, rest = (rest + decoder.decode(chunk)).replace("\r", "\n").split("\n")
            yield from lines
            rest = rest[:LONGEST_LINE]
