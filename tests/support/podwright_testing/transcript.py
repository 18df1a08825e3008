"""A page whose console blocks are commands with their output: run it, compare it, write it anew.

Ids, addresses, times and numbers may differ, and so may the order of lines. Every line that the page shows must be
printed; a page leaves lines out. Comments ``<!-- rehearsal: NAME -->`` are what happens around the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = "…"
HEAD, TAIL, WIDTH = 9, 4, 98  # of an output on the page
_EVENT = re.compile(r"<!-- rehearsal: (.*) -->")
_MASKS = (
    (re.compile(r"\bip-[\d\[][\d\-,\[\]]*"), "ip-N"),
    (re.compile(r"\b\d+[dhms]( ?\d+[dhms])*\b"), "TIME"),
    (re.compile(r"\b\d[\d,.]*(e-?\d+)? ?(min|days|TB|GB|MB|kB|ms|h|s)\b"), "N"),
    (re.compile(r"\b([a-z]+)-[0-9a-f]{6,}\b"), r"\1-ID"),
    (re.compile(r"\b(?=[a-z]*\d)[0-9a-z]{12}\b"), "ID"),
    (re.compile(r"-?\d[\d,.]*"), "N"),
    (re.compile(r"[█▓▒░▚▞▤▥━─·| ]+"), " "),
)


@dataclass(frozen=True)
class Command:
    """A command of the page, and the lines that it shows of its output."""

    line: int  # of the page, counted from 0
    text: str
    shown: list[str]


@dataclass(frozen=True)
class Event:
    """Something that happens around the user; ``text`` is the block that follows, unless it is a console."""

    name: str
    text: str


def read(page: Path) -> Iterator[Command | Event]:
    """Yield what happens on a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    fence = ""
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence == "```console" and line.startswith("$ "):
            yield Command(number, line.removeprefix("$ "), list(_until(lines[number + 1 :], ("$ ", "```"))))
        elif found := _EVENT.fullmatch(line):
            block = lines[number + 2 :] if lines[number + 1].startswith("```yaml") else []
            yield Event(found[1], "".join(f"{text}\n" for text in _until(block, ("```",))))


def missing(command: Command, printed: str) -> list[str]:
    """Return the lines that the page shows and that were not printed."""
    given = [masked(line) for line in lines(printed)]
    return [line for line in command.shown if line.strip() != LEFT_OUT and not _is_printed(line, given)]


def shortened(printed: str) -> list[str]:
    """Return an output as a page shows it."""
    found = [line if len(line) <= WIDTH else f"{line[: WIDTH - 2].rstrip()} {LEFT_OUT}" for line in lines(printed)]
    return found if len(found) <= HEAD + TAIL + 1 else [*found[:HEAD], LEFT_OUT, *found[-TAIL:]]


def rewritten(page: Path, outputs: dict[int, str]) -> str:
    """Return a page with other outputs, by the line of their command."""
    result: list[str] = []
    skipping = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines()):
        skipping = skipping and not line.startswith(("$ ", "```"))
        if not skipping:
            result.append(line)
        if number in outputs:
            result += shortened(outputs[number])
            skipping = True
    return "\n".join(result) + "\n"


def lines(printed: str) -> list[str]:
    """Return the lines of an output that are not empty."""
    return [line.rstrip() for line in printed.splitlines() if line.strip()]


def masked(line: str) -> str:
    """Return a line without what differs from run to run."""
    for pattern, replacement in _MASKS:
        line = pattern.sub(replacement, line)
    return line.strip()


def _is_printed(line: str, given: list[str]) -> bool:
    if line.endswith(f" {LEFT_OUT}"):  # cut where a number may be half
        start = masked(line.removesuffix(LEFT_OUT)).rstrip("N ")
        return any(item.startswith(start) for item in given)
    return masked(line) in given


def _until(following: list[str], ends: tuple[str, ...]) -> Iterator[str]:
    for line in following:
        if line.startswith(ends):
            return
        yield line
