"""Training runs, as they write down themselves: ``metrics.jsonl`` in each run's folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

from podwright_bootstrap.collectors.family import Family

RUNS = Path(os.environ.get("PODWRIGHT_RUNS", "/fsx/runs"))
METRICS_NAME = "metrics.jsonl"
RECENT_S = 900  # a run that wrote nothing for longer has ended, or hangs
TAIL_BYTES = 1 << 16
FIELDS = (
    ("tokens_per_s", "tokens_per_second", "Tokens a second of the whole run"),
    ("mfu", "mfu_ratio", "Model FLOP utilisation"),
    ("loss", "loss", "Loss of the last step"),
    ("step", "step", "The last step"),
)


def collect() -> List[Family]:
    """The last step of each run that still writes."""
    families = [Family(f"podwright_training_{name}", meaning) for _, name, meaning in FIELDS]
    for path in sorted(RUNS.glob(f"*/{METRICS_NAME}")):
        if time.time() - path.stat().st_mtime > RECENT_S:
            continue
        steps = [event for event in _last_events(path) if event.get("event") == "train"]
        for family, (key, *_) in zip(families, FIELDS):  # noqa: B905 (Python 3.8)
            if steps and isinstance(steps[-1].get(key), (int, float)):
                family.add(steps[-1][key], run=path.parent.name)
    return families


def _last_events(path: Path) -> Iterator[Dict[str, Any]]:
    """The whole lines at the end of the file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for line in file.read().split(b"\n")[:-1]:
            try:
                yield json.loads(line)
            except ValueError:  # the first one may be cut
                continue
