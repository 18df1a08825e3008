"""``podwright-train watch``: follow a run in the terminal."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from podwright_training.report import summary
from podwright_training.report.curve import buckets, smooth_run
from podwright_training.report.history import History, ReportError
from podwright_training.run_folder import RunFolder

REFRESH_S = 5.0
LAST_BYTES = 16 << 20  # of the metrics: some 30,000 steps, read in half a second
LAST_EVENTS = 5
BARS = "▁▂▃▄▅▆▇█"
MARGIN = 12  # columns beside the curve, for its range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train watch``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--usd-per-hour", type=float, help="price of all nodes; adds the cost. Default: no cost")
    parser.add_argument(
        "--refresh-s", type=_seconds, default=REFRESH_S, help=f"seconds between two looks. Default: {REFRESH_S:g}"
    )


def run(args: argparse.Namespace) -> int:
    """Draw until the run ends or Ctrl-C; in a pipe, print once."""
    folder, console = RunFolder(args.run_dir), Console(highlight=False)
    if not console.is_terminal:
        console.print(render(_history(folder), width=console.width, usd_per_hour=args.usd_per_hour))
        return 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                try:
                    history = _history(folder)
                except ReportError as error:  # the job has not begun
                    live.update(Text(str(error)), refresh=True)
                else:
                    screen = render(history, width=console.width, usd_per_hour=args.usd_per_hour)
                    live.update(screen, refresh=True)
                    if history.end is not None:
                        return 0
                time.sleep(args.refresh_s)
    except KeyboardInterrupt:
        return 0


def render(history: History, *, width: int, usd_per_hour: float | None = None) -> RenderableType:
    """Return the screen: progress, the smoothed loss, figures, and the last events."""
    verdict = summary.verdict(history)
    losses = smooth_run([event["loss"] for event in history.train])
    table = Table.grid(padding=(0, 3, 0, 0))
    rows = list(summary.headline(history, usd_per_hour=usd_per_hour))
    for left, right in zip(rows[::2], [*rows[1::2], ("", "")], strict=False):
        table.add_row(Text(left[0], style="dim"), left[1], Text(right[0], style="dim"), right[1])
    first, last = history.train[0]["step"], history.last_step
    return Group(
        Text.assemble((history.name, "bold"), f"  {summary.status(history)}"),
        Text.assemble((verdict.word, _style(verdict.word)), f": {verdict.reason}"),
        Text(),
        *_curve(losses, width=max(10, width - MARGIN)),
        Text(f"training loss, smoothed, steps {first:,} to {last:,}", style="dim"),
        Text(),
        table,
        *[
            Text(" ".join(filter(None, row)), style="dim", no_wrap=True, overflow="ellipsis")
            for row in summary.events(history)[-LAST_EVENTS:]
        ],
    )


def _history(folder: RunFolder) -> History:
    return History.of(folder, last_bytes=LAST_BYTES)


def _curve(values: Sequence[float], *, width: int, height: int = 4) -> list[Text]:
    """Return lines of text that draw the values, the highest line with the maximum and the lowest with the minimum."""
    means = [sum(values[part]) / len(values[part]) for part in buckets(len(values), width)]
    low, high = min(means), max(means)
    levels = len(BARS) * height
    filled = [1 + round((mean - low) / (high - low or 1) * (levels - 1)) for mean in means]
    lines = []
    for row in reversed(range(height)):
        bars = "".join(
            BARS[min(level - row * len(BARS), len(BARS)) - 1] if level > row * len(BARS) else " " for level in filled
        )
        label = {height - 1: f"{high:.4f}", 0: f"{low:.4f}"}.get(row, "")
        lines.append(Text.assemble((bars, "blue"), f" {label}"))
    return lines


def _style(word: str) -> str:
    return {"healthy": "bold green", "diverged": "bold red", "spikes": "bold yellow"}.get(word, "bold")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"got {text}, need a number of seconds above 0")
    return seconds
