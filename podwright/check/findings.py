"""Findings of a check, and how they are printed: position, message, source line with a caret, hint.

All findings of a file are printed at once, so that one run of the command shows everything that must be corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from podwright.check.secrets import masked
from podwright.json_document import JsonObject
from podwright_common import terminal
from podwright_common.yaml_document import lines_of
from podwright_constructs.problems import Problem, dotted

if TYPE_CHECKING:
    from rich.text import Text

Key = str | int
KeyPath = tuple[Key, ...]  # ("cluster", "instance_groups", 1, "count")


class Level(str, Enum):
    """The severity of a finding; only an error stops a deployment."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One error, warning or remark about a settings file.

    ``line`` and ``column`` count from 1; both are None for settings that no file gave. The caret underlines ``width``
    characters, of the value or, with ``at_key``, of the key. ``problem`` is the construct's problem, if a construct's
    check found it.
    """

    level: Level
    code: str
    path: KeyPath
    message: str
    hint: str = ""
    line: int | None = None
    column: int | None = None
    width: int = 1
    problem: Problem | None = None
    at_key: bool = False

    def document(self) -> FindingDocument:
        """Return the finding as ``--json`` prints it."""
        problem = self.problem.code if self.problem else None
        return FindingDocument.of(self, level=self.level.value, problem=problem, path=dotted(self.path))


@dataclass(frozen=True)
class FindingDocument(JsonObject):
    """A problem, its place in the file, and a remedy."""

    level: Literal["error", "warning", "info"]
    code: str
    """`podwright explain CODE` says what it means."""
    problem: str | None
    """The kind of mistake in one argument, such as `range` or `choice`; null for a finding about more than one."""
    path: str
    """Of the key, such as `cluster.instance_groups[1].count`; empty for the whole file."""
    line: int | None
    """From 1; null where no file gave the value."""
    column: int | None
    message: str
    hint: str


@dataclass(frozen=True)
class Check(JsonObject):
    """The document of `podwright check --json`."""

    findings: list[FindingDocument]


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether any finding stops a deployment."""
    return any(finding.level is Level.ERROR for finding in findings)


def json_document(findings: Iterable[Finding]) -> Check:
    """Return the findings as `podwright check --json` prints them."""
    return Check([finding.document() for finding in findings])


def render(findings: Iterable[Finding], *, file: Path, text: str, columns: int | None = None) -> str:
    """Return the findings as plain text: position, message, source line with a caret, hint; secrets are masked.

    Args:
        findings: in the order of the text.
        file: its name.
        text: its lines.
        columns: the width that source lines are cut to. Default: whole lines.
    """
    lines = lines_of(masked(text))
    return "\n".join("".join(part for part, _ in _pieces(finding, file, lines, columns)) for finding in findings)


def write(findings: Iterable[Finding], *, file: Path, text: str, stream: TextIO) -> None:
    """Print the findings, coloured on a terminal only."""
    findings = list(findings)
    if not findings:
        return
    if not stream.isatty():
        print(render(findings, file=file, text=text), file=stream)
        return
    from rich.console import Console  # noqa: PLC0415 — 60 ms that a pipe need not wait for

    # The stream itself wraps and escapes the lines.
    console = Console(file=stream, highlight=False, soft_wrap=True)
    lines = lines_of(masked(text))
    for finding in findings:
        console.print(_coloured(_pieces(finding, file, lines, terminal.columns(stream))))


def summary(findings: Sequence[Finding]) -> str:
    """Count the findings of each level: ``2 errors, 1 warning``; empty without findings."""
    counts = [(sum(finding.level is level for finding in findings), level.value) for level in Level]
    return ", ".join(f"{count} {word}{'s' if count > 1 and word != 'info' else ''}" for count, word in counts if count)


_STYLES = {Level.ERROR: "bold red", Level.WARNING: "bold yellow", Level.INFO: "bold cyan"}
_PLAIN = ""


def _place(finding: Finding, file: Path) -> list[str]:
    """Return file and key of a finding without a line; a finding about no key has the file alone."""
    return [str(file), *([dotted(finding.path)] if finding.path else [])]


def _pieces(finding: Finding, file: Path, lines: Sequence[str], columns: int | None = None) -> list[tuple[str, str]]:
    """Return texts and their styles, in order, for the plain and the coloured form."""
    style = _STYLES[finding.level]
    position = f"{file}:{finding.line}:{finding.column}" if finding.line else ": ".join(_place(finding, file))
    pieces = [
        (f"{position}: ", "bold"),
        (finding.level.value, style),
        (f": {_printable(finding.message)} ", _PLAIN),
        (f"[{finding.code}]\n", "dim"),
    ]
    if finding.line and finding.column and finding.line <= len(lines):
        pieces += _excerpt(finding, lines[finding.line - 1], columns)
    if finding.hint:
        pieces += [("  hint: ", "bold green"), (f"{_printable(finding.hint)}\n", _PLAIN)]
    return pieces


def _excerpt(finding: Finding, line: str, columns: int | None) -> list[tuple[str, str]]:
    """Return the finding's line of the file, with a caret below its value."""
    margin, at, width = f"{finding.line:5} | ", (finding.column or 1) - 1, finding.width
    if columns is not None:
        room = max(1, columns - len(margin) - 1)
        line, start = _part_around(line, at, room)
        at -= start
        width = max(1, min(width, room - at))
    return [
        (margin, "dim"),
        (f"{_printable(line)}\n", _PLAIN),
        (" " * (len(margin) + at), _PLAIN),
        ("^" * width + "\n", _STYLES[finding.level]),
    ]


def _part_around(line: str, at: int, room: int) -> tuple[str, int]:
    """Return the part of a line that fits and contains a position, and the column where the part starts."""
    if len(line) <= room:
        return line, 0
    start = max(0, min(at - room // 4, len(line) - room))
    part = line[start : start + room]
    part = f"…{part[1:]}" if start else part
    return f"{part[:-1]}…" if start + room < len(line) else part, start


def _printable(text: str) -> str:
    """Replace characters that could move the cursor; keep the width."""
    return "".join(character if character.isprintable() else " " for character in text)


def _coloured(pieces: Iterable[tuple[str, str]]) -> Text:
    from rich.text import Text  # noqa: PLC0415 — as above

    return Text.assemble(*pieces, end="")


def findings_of(section: KeyPath, problems: Iterable[Problem]) -> Iterator[Finding]:
    """Report a construct's problems, each at the path of its argument below the section."""
    for problem in problems:
        yield finding_of((*section, *problem.path), problem)


def finding_of(path: KeyPath, problem: Problem) -> Finding:
    """Report a construct's problem at a path of the file, in the construct's own sentence."""
    return replace(error(path, problem.message, problem.hint), problem=problem)


def error(path: KeyPath, message: str, hint: str, *, at_key: bool = False) -> Finding:
    """Make an error; its code is the rule's."""
    return Finding(Level.ERROR, "", path, message, hint, at_key=at_key)


def warning(path: KeyPath, message: str, hint: str) -> Finding:
    """Make a warning, which fails only with ``--strict``."""
    return Finding(Level.WARNING, "", path, message, hint)


def remark(path: KeyPath, message: str, hint: str) -> Finding:
    """Make a remark, which never fails."""
    return Finding(Level.INFO, "", path, message, hint)
