"""Draw a run for the terminal: progress, the smoothed loss, figures, and the last events."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podwright_training.report import summary
from podwright_training.report.curve import buckets, smooth_run
from podwright_training.report.history import History

LAST_EVENTS = 5
BARS = "▁▂▃▄▅▆▇█"
MARGIN = 12  # columns beside the curve, for its range


def render(history: History, *, width: int, usd_per_hour: float | None = None) -> RenderableType:
    """Return the screen: progress, the smoothed loss, figures, and the last events."""
    verdict = summary.verdict(history)
    losses = smooth_run([event.loss for event in history.train])
    table = Table.grid(padding=(0, 3, 0, 0))
    rows = list(summary.headline(history, usd_per_hour=usd_per_hour))
    for left_row, right_row in zip(rows[::2], [*rows[1::2], ("", "")], strict=False):
        table.add_row(Text(left_row[0], style="dim"), left_row[1], Text(right_row[0], style="dim"), right_row[1])
    first_step, last_step = history.train[0].step, history.last_step
    return Group(
        Text.assemble((history.name, "bold"), f"  {summary.status(history)}"),
        Text.assemble((verdict.word, _style(verdict.word)), f": {verdict.reason}"),
        Text(),
        *_curve(losses, width=max(10, width - MARGIN)),
        Text(f"training loss, smoothed, steps {first_step:,} to {last_step:,}", style="dim"),
        Text(),
        table,
        Text(),
        *_time(history),
        *[
            Text(" ".join(filter(None, row)), style="dim", no_wrap=True, overflow="ellipsis")
            for row in summary.events(history)[-LAST_EVENTS:]
        ],
    )


def _time(history: History) -> list[Text]:
    """Return a line with the share of the time that made progress, and the causes of the rest."""
    rows = [f"{name} {value}" for name, value in summary.goodput(history.goodput)]
    text = ", ".join(rows) + (f": {lost}" if (lost := summary.lost(history.goodput)) else "")
    return [Text(text, no_wrap=True, overflow="ellipsis")][: len(rows)]


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
