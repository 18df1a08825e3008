"""Print to terminals: lines wrapped between words, and nothing that a terminal would obey but our own colours.

Names, reasons, logs and errors are texts of others: printed raw, they could clear the screen, write to the clipboard or
reverse a line. Every text passes ``Fitted``; what draws a screen uses ``drawing.drawing_console``. A pipe or a file
gets every line whole and unchanged.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Iterator, List, TextIO

DEFAULT_COLUMNS = 80
INDENT = 2  # columns by which a line's second part is moved in
_WORD = re.compile(r"(\s*)(\S+)")
_COLUMN = re.compile(r"\S {2,}(?=\S)")  # Text after two spaces is a column of its own.
# Control characters (C0, C1), those that change a line's direction or end it, and halves of characters.
_OBEYED = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
# Colours and weights of the text: https://man7.org/linux/man-pages/man4/console_codes.4.html. Others could hide it.
_SHADE = r"(?:[0-4]|2[2-4]|3[0-79]|9[0-7]|38;5;\d{1,3}|38;2;\d{1,3};\d{1,3};\d{1,3})"
_COLOURS = rf"\x1b\[(?:{_SHADE}(?:;{_SHADE})*)?m"
_MOVES = r"\r|\x1b\[\d{0,3}[A-DGJK]|\x1b\[H|\x1b\[\?(?:25|1049)[hl]"  # those with which rich draws
_PLAIN = re.compile(_OBEYED)
_COLOURED = re.compile(f"(?P<ours>{_COLOURS})|{_OBEYED}")
_DRAWN = re.compile(f"(?P<ours>{_COLOURS}|{_MOVES})|{_OBEYED}")
_NO_ROOM = re.compile(_COLOURS)
_RESET = "\x1b[0m"


class Fitted(TextIOWrapper):
    """A terminal's text stream. A word that is wider than the terminal stays whole, so that it can be copied."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self._started = ""  # a line whose end is not yet written
        self.keeps_lines = False

    def write(self, text: str) -> int:
        """Write complete lines; keep an incomplete one until its end or ``flush``."""
        *lines, self._started = (self._started + text).split("\n")
        for line in lines:
            super().write(f"{self._fit(line)}\n")
        return len(text)

    def flush(self) -> None:
        """Write the incomplete line, such as a question that ends without a newline."""
        started, self._started = self._started, ""
        if started:
            spaces = started[len(started.rstrip(" ")) :]  # a question ends with one
            super().write(self._fit(started.rstrip(" ")) + spaces)
        super().flush()

    def draw(self, text: str) -> None:
        """Write what rich draws: also the moves of its cursor."""
        self.flush()
        super().write(_without(_DRAWN, text))
        super().flush()

    def _fit(self, line: str) -> str:
        if self.keeps_lines:  # the parts of a progress bar in a log become lines
            line = line.rstrip("\r").replace("\r", "\n")
        line = printable(line, colours=True)
        return line if self.keeps_lines else fit(line, columns(self))


def printable(text: str, *, colours: bool = False) -> str:
    r"""Return a text of which a terminal obeys nothing: control characters are written as in Python, such as ``\x1b``.

    Args:
        text: of anybody.
        colours: leave sequences that only colour a text; the line ends without one.
    """
    if text.isascii() and text.isprintable():
        return text
    if not colours:
        return _PLAIN.sub(_escaped, text)
    shown = _without(_COLOURED, text)
    return shown + _RESET if _is_coloured_at_end(shown) else shown


def _without(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda match: match["ours"] or _escaped(match), text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _is_coloured_at_end(text: str) -> bool:
    colours: List[str] = _NO_ROOM.findall(text)
    return bool(colours) and colours[-1] not in {_RESET, "\x1b[m"}


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
    columns_text = os.environ.get("COLUMNS", "")
    if columns_text.isdecimal() and int(columns_text):
        width = int(columns_text)
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
    return sum(
        2 if unicodedata.east_asian_width(character) in "WF" else not unicodedata.combining(character)
        for character in plain
    )
