"""Write the time of runs as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from podwright_training.report import summary
from podwright_training.report.history import History


def as_markdown(histories: Sequence[History], *, usd_per_hour: float | None) -> str:
    """Return the tables of all runs: the time by kind, and the interruptions by cause."""
    return "\n".join(line for history in histories for line in _lines(history, usd_per_hour))


def _lines(history: History, usd_per_hour: float | None) -> Iterator[str]:
    head, rows = summary.goodput_table(history.goodput, usd_per_hour=usd_per_hour)
    yield from (f"# Time of {history.name}", "")
    for name, value in summary.goodput(history.goodput):
        yield f"- {name}: {value}"
    yield from ("", *_table(head, rows), "")
    causes = [(cause, host, str(times), f"{lost:,.1f}") for host, cause, times, lost in history.goodput.causes()]
    if causes:
        yield from (*_table(("interruption", "host", "times", "seconds lost"), causes), "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
