"""Measure the report of a long run: to write it, and to open it in a headless browser.

    python bench/report.py [--steps 1000000] [--rounds 5]

Smallest: python bench/report.py --steps 2000 --rounds 1

The metrics are made up: a log line every 10 steps, the trainer's default. A browser opens an empty page and the report
by turns until all figures are drawn; what counts is the difference of the medians.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from podwright_training.commands.report import PAGE
from podwright_training.report.figures import OF_ONE_RUN
from podwright_training.run_folder import RunFolder

LOGGING_FREQ = 10
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")


def main() -> None:
    """Print sizes and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser on PATH: {', '.join(BROWSERS)}; `make setup-test` installs one")
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "long")
        folder.root.mkdir()
        folder.config.write_text(f"max_context_width: 4096\nmax_steps: {2 * args.steps}\n")
        with folder.metrics.open("w") as file:
            file.writelines(json.dumps(event) + "\n" for event in _events(args.steps))
        start = perf_counter()
        command = ("-m", "podwright_training", "report", "--run-dir", folder.root)
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        written_s = perf_counter() - start
        page, empty = folder.report / PAGE, Path(name) / "empty.html"
        empty.write_text("<!doctype html><title>empty</title>")
        seconds: dict[Path, list[float]] = {empty: [], page: []}
        for _ in range(args.rounds):
            for each, taken in seconds.items():
                start = perf_counter()
                drawn = _open(browser, each, Path(name) / "profile")
                taken.append(perf_counter() - start)
        if not 0 < int(drawn or 0) <= len(OF_ONE_RUN):
            sys.exit("the page drew no figure")
        opened, nothing = statistics.median(seconds[page]), statistics.median(seconds[empty])
        print(f"{args.steps:,} steps, {folder.metrics.stat().st_size / 1e6:.0f} MB of metrics")
        print(f"report written in {written_s:.1f} s, page {page.stat().st_size / 1e6:.2f} MB, {drawn} figures")
        print(f"opened in {opened - nothing:.2f} s: {opened:.2f} s, less {nothing:.2f} s for an empty page")


def _open(browser: str, page: Path, profile: Path) -> str | None:
    """Open a page; return how many figures it drew, as it says."""
    command = [browser, *FLAGS, f"--user-data-dir={profile}", page.as_uri()]
    dom = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    _, found, rest = dom.partition('data-drawn="')
    return rest.partition('"')[0] if found else None


def _events(steps: int) -> Iterator[dict[str, Any]]:
    dice = random.Random(0)  # noqa: S311 -- not for secrets
    yield {"event": "start", "time": 1.7e9, "step": 0, "world_size": 64, "parameters": 10**9, "resumed_from": None}
    for step in range(LOGGING_FREQ, steps + 1, LOGGING_FREQ):
        loss = 2 + 8 * step**-0.3 + dice.gauss(0, 0.05)
        time_s = 1.7e9 + step
        yield {
            "event": "train",
            "time": time_s,
            "step": step,
            "loss": loss,
            "perplexity": math.exp(loss),
            "grad_norm": 0.4 + abs(dice.gauss(0, 0.1)),
            "lr": 3e-4 * (1 - step / steps / 2),
            "mfu": 0.4,
            "tokens_per_s": 5e5 + dice.gauss(0, 1e4),
            "step_s": 1.0,
            "data_s": 0.01,
            "lag_s": 0.0,
            "sequences": 256 * step,
            "batch_sequences": 256,
            "memory_peak_bytes": 60_000_000_000,
        }
        if step % (steps // 100) == 0:
            yield {"event": "validation", "time": time_s, "step": step, "loss": loss, "perplexity": 1.0, "tokens": 1}
            yield {"event": "checkpoint", "time": time_s, "step": step, "path": "", "paused_s": 0.1}


if __name__ == "__main__":
    main()
