"""Print the results of commands: tables that fit the terminal, plain text in a pipe, one JSON document.

Colours go to terminals only, and not with ``NO_COLOR`` (https://no-color.org).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from podwright.errors import ArgumentError
from podwright.json_document import JsonObject, to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

PIPE_WIDTH = 10_000  # Columns in a pipe are not cut off.
YES = {"y", "yes"}

# Colours of AWS's and Slurm's states.
_GOOD = {"InService", "Running", "UpToDate", "Succeeded", "idle", "alloc", "mix", "AVAILABLE"}
_BAD = {
    "Failed",
    "Failure",
    "RollingBack",
    "NotFound",
    "SecurityUpdateRequired",
    "EndOfLife",
    "Degraded",
    "down",
    "fail",
}


class Column(NamedTuple):
    """A column of a table. One with a ``rank`` is left out where the terminal is too narrow, the highest rank first."""

    heading: str
    rank: int = 0
    right: bool = False


def console() -> Console:
    """Return rich's console for stdout."""
    from podwright_common.drawing import drawing_console

    is_terminal = sys.stdout.isatty()
    return drawing_console(
        sys.stdout, width=None if is_terminal else PIPE_WIDTH, highlight=False, soft_wrap=not is_terminal
    )


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, to: Console | None = None) -> None:
    """Print a table that is as narrow as the terminal."""
    to = to or console()
    if to.is_terminal:
        to.print(table(columns, rows, width=to.width))
        return
    with to.capture() as capture:
        to.print(table(columns, rows, width=to.width))
    to.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int) -> RenderableType:
    """Return a table without the columns that do not fit into ``width`` characters, or that are empty in all rows."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    shown = [n for n, column in enumerate(columns) if not column.rank or any(row[n] for row in rows)]
    while True:
        layout = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for n in shown:
            layout.add_column(columns[n].heading, justify="right" if columns[n].right else "left", overflow="fold")
        for row in rows:
            layout.add_row(*(state(row[n]) for n in shown))
        optional = [n for n in shown if columns[n].rank]
        measuring = Console(width=PIPE_WIDTH)
        if not optional or Measurement.get(measuring, measuring.options, layout).maximum <= width:
            return layout
        shown.remove(max(optional, key=lambda n: columns[n].rank))


def state(word: str) -> Text:
    """Return a word in the colour of its state."""
    from rich.text import Text

    return Text(word, style="green" if word in _GOOD else "red" if word in _BAD else "")


def print_document(document: JsonObject) -> None:
    """Print one JSON document. Keys of a version stay; a document may get more."""
    print(to_json(document))


def confirm(question: str, *, yes: bool) -> bool:
    """Return whether to go on: True with ``--yes``, else the answer on the terminal.

    Raises:
        ArgumentError: there is no terminal to ask.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ArgumentError(f"{question} Nothing was changed", "no terminal to ask: confirm with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in YES


def age(since: datetime | None, *, now: datetime | None = None) -> str:
    """Return the time since then: ``3d 4h``, or ``12d`` where the first number has two digits."""
    if since is None:
        return ""
    seconds = max(0, int(((now or datetime.now(timezone.utc)) - since).total_seconds()))
    units = {"d": seconds // 86400, "h": seconds // 3600 % 24, "m": seconds // 60 % 60, "s": seconds % 60}
    parts = [f"{value}{unit}" for unit, value in units.items()]
    start = next((n for n, value in enumerate(units.values()) if value), len(parts) - 1)
    return " ".join(parts[start : start + (1 if len(parts[start]) > len("9d") else 2)])
