"""Training runs, as they write down themselves: ``metrics.jsonl`` in each run's folder."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Tuple

from podwright_bootstrap.collectors.family import Family
from podwright_common import regular_file

RUNS = Path(os.environ.get("PODWRIGHT_RUNS", "/fsx/runs"))
METRICS_NAME = "metrics.jsonl"
RECENT_S = 3600  # a run that wrote nothing for longer is of the past
TAIL_BYTES = 1 << 16
LOOK_LIMIT_S = 10
MOST_RUNS = 200  # AWS counts every series
FIELDS = (
    ("tokens_per_s", "tokens_per_second", "Tokens a second of the whole run"),
    ("mfu", "mfu_ratio", "Model FLOP utilisation"),
    ("loss", "loss", "Loss of the last step"),
    ("step", "step", "The last step"),
)


def collect() -> List[Family]:
    """Return the last step of each run that still writes, and how many runs could not be read.

    Runs are their users': one that is a pipe, closed or nonsense is counted, and does not stop the others.
    """
    families = [Family(f"podwright_training_{name}", meaning) for _, name, meaning in FIELDS]
    running = Family("podwright_training_running", "1 while the run has not written its end, else 0")
    unreadable = Family("podwright_training_unreadable_runs", "Runs whose metrics could not be read")
    failed = 0
    for folder in _recent_runs():
        try:
            last_step, ended = _last_step(folder / METRICS_NAME)
        except (OSError, ValueError, RecursionError):
            failed += 1
            continue
        running.add(not ended, run=folder.name)
        for family, (key, *_) in zip(families, FIELDS):  # noqa: B905 (Python 3.8)
            if isinstance(last_step.get(key), (int, float)):
                family.add(last_step[key], run=folder.name)
    unreadable.add(failed)
    return [*families, running, unreadable]


def _recent_runs() -> List[Path]:
    """Return the folders whose metrics changed lately, at most as many as one collection can read in time.

    Of too many each owner has a share, the newest: a user who makes hundreds does not hide the others'.
    """
    recent_runs: List[Tuple[float, int, str]] = []
    end, now = time.monotonic() + LOOK_LIMIT_S, time.time()
    with os.scandir(RUNS) as entries:
        for entry in entries:
            if time.monotonic() > end:
                break
            try:
                changed = (Path(entry.path) / METRICS_NAME).lstat().st_mtime
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                changed = now  # A folder that is closed to us is counted as unreadable.
            if now - changed <= RECENT_S:
                recent_runs.append((changed, _owner(entry), entry.path))
    places: Counter[int] = Counter()
    shares: List[Tuple[int, str]] = []
    for _, owner, path in sorted(recent_runs, reverse=True):
        shares.append((places[owner], path))
        places[owner] += 1
    return [Path(path) for _, path in sorted(shares)[:MOST_RUNS]]


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:  # it has gone
        return 0


def _last_step(path: Path) -> Tuple[Dict[str, Any], bool]:
    """Return the last whole line of a train step, empty if the tail of the file has none; and whether the run ended."""
    ended = None
    lines = regular_file.read(path, limit_bytes=TAIL_BYTES, tail=True).split(b"\n")[:-1]
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # the first one may be cut
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if ended is None and kind in {"start", "train", "end"}:
            ended = kind == "end"
        if kind == "train":
            return event, bool(ended)
    return {}, bool(ended)
