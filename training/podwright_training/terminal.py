"""Wrap printed lines at the terminal's width, between words.

Only terminals are fitted. A pipe or a file gets every line whole.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TextIO

DEFAULT_COLUMNS = 80
INDENT = 2  # columns by which a line's second part is moved in
# Colours and links take no room. A line with other sequences draws on the screen, and places its text itself.
_NO_ROOM = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;.*?\x1b\\")
_DRAWS = re.compile(r"\r(?!$)|\x1b(?!\[[0-9;]*m|\]8;|\\)")
_WORD = re.compile(r"(\s*)(\S+)")
_COLUMN = re.compile(r"\S {2,}(?=\S)")  # what follows two spaces is a column of its own


class Fitted(TextIOWrapper):
    """A terminal's text stream. A word that is wider than the terminal stays whole, so that it can be copied."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self._started = ""  # a line whose end is not yet written
        self.keeps_lines = False

    def write(self, text: str) -> int:
        """Write the lines that are complete; the rest waits for its end or ``flush``."""
        *lines, self._started = (self._started + text).split("\n")
        for line in lines:
            super().write(f"{self._fit(line)}\n")
        return len(text)

    def flush(self) -> None:
        """Write the rest, such as a question that ends without a newline."""
        started, self._started = self._started, ""
        if started:
            spaces = started[len(started.rstrip(" ")) :]  # a question ends with one
            super().write(self._fit(started.rstrip(" ")) + spaces)
        super().flush()

    def _fit(self, line: str) -> str:
        return line if self.keeps_lines or _DRAWS.search(line) else fit(line, columns(self))


def fit_terminals() -> None:
    """Fit stdout and stderr where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and not isinstance(stream, Fitted) and stream.isatty():
            setattr(sys, name, Fitted(stream))


@contextmanager
def whole_lines() -> Iterator[None]:
    """Do not wrap stdout's lines within the context: a document for a program, or another program's output."""
    stream = sys.stdout
    if not isinstance(stream, Fitted):
        yield
        return
    stream.keeps_lines = True
    try:
        yield
    finally:
        stream.flush()
        stream.keeps_lines = False


def columns(stream: TextIO | None = None, *, at_most: int | None = None) -> int:
    """Return the width of a stream's terminal. Default: COLUMNS, else 80."""
    stream = stream or sys.stdout
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        width = int(given)
    else:
        try:
            width = os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
        except (OSError, ValueError):  # a pipe, or a stream without a file
            width = at_most or DEFAULT_COLUMNS
    return min(width, at_most or width)


def fit(line: str, width: int) -> str:
    """Return a line wrapped; further lines are indented, or aligned with the table's column that they continue."""
    if _room(line) <= width:
        return line
    indent = _indent(line, width)
    lines, used = [""], 0
    for gap, word in _WORD.findall(line):
        room = _room(word)
        if used and used + len(gap) + room > width:
            lines.append("")
            used, gap = 0, " " * indent  # noqa: PLW2901 — a line starts with the indent instead
        if not used:
            gap = gap[: max(0, width - room)]  # noqa: PLW2901 — a wide word starts further left
        lines[-1] += gap + word
        used += len(gap) + room
    return "\n".join(lines)


def _indent(line: str, width: int) -> int:
    """Return the column at which a wrapped line continues; most of the width stays for its words."""
    plain = _NO_ROOM.sub("", line)
    starts = [match.end() for match in _COLUMN.finditer(plain) if match.end() <= 3 * width // 5]
    return starts[-1] if starts else min(len(plain) - len(plain.lstrip()) + INDENT, width // 2)


def _room(text: str) -> int:
    """Return how many columns a text takes."""
    plain = _NO_ROOM.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else not unicodedata.combining(each) for each in plain)
