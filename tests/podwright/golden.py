"""Golden cases: a wrong settings file, as its difference from a good one, and what ``podwright check`` prints about it.

A case is ``cases/CODE/NAME.yaml``; CODE is the first finding's code. Its keys:

- ``base``: the good file to start from, in ``cases/``; default: ``base.yaml``.
- ``lines``: from a line of the base, without its indentation, to the lines that replace it, indented alike. The line
  must occur once; an empty text removes it.
- ``sections``: text whose top-level sections replace the base's sections of the same name; others are appended.
- ``text``: the whole file, instead of all three above, for cases about YAML itself.
- ``expected``: what the command prints. It comes last, because ``pytest tests/podwright/test_check.py --update``
  writes it, in a new case too; read ``git diff`` before you commit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

CASES = Path(__file__).parent / "cases"
FILE_NAME = "cluster.yaml"  # of a rendered case
_EXPECTED = "expected: |\n"


@dataclass(frozen=True)
class Case:
    """One wrong file and its findings."""

    path: Path
    expected: str = ""
    base: str = "base.yaml"
    lines: dict[str, str] = field(default_factory=dict)
    sections: str = ""
    text: str | None = None

    @classmethod
    def read(cls, path: Path) -> Case:
        """Read a case; an unknown key raises ``TypeError``."""
        content: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        return cls(path=path, **content)

    @property
    def name(self) -> str:
        """The case's name in test ids: ``code/name``."""
        return self.path.relative_to(CASES).with_suffix("").as_posix()

    def render(self) -> str:
        """Return the settings file."""
        if self.text is not None:
            return self.text
        text = (CASES / self.base).read_text(encoding="utf-8")
        for line, replacement in self.lines.items():
            text = _replace_line(text, line, replacement)
        return _replace_sections(text, self.sections) if self.sections else text

    def write(self, folder: Path) -> Path:
        """Write the settings file into a folder."""
        file = folder / FILE_NAME
        file.write_text(self.render(), encoding="utf-8")
        return file

    def update(self, printed: str) -> None:
        """Write the expected text into the case's file, or replace the one that is there."""
        head, _, _ = self.path.read_text(encoding="utf-8").partition(_EXPECTED)
        self.path.write_text(head + _EXPECTED + indent(printed, "  "), encoding="utf-8")


@cache
def cases() -> Sequence[Case]:
    """Return all cases, sorted by name."""
    return tuple(Case.read(path) for path in sorted(CASES.glob("*/*.yaml")))


def _replace_line(text: str, line: str, replacement: str) -> str:
    lines = text.splitlines(keepends=True)
    (index,) = (number for number, candidate in enumerate(lines) if candidate.strip() == line)
    spaces = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
    lines[index] = indent(replacement.rstrip("\n") + "\n", spaces) if replacement else ""
    return "".join(lines)


def _replace_sections(text: str, sections: str) -> str:
    by_name = _by_section(text)
    for name, lines in _by_section(sections).items():
        by_name[name] = lines
    return "".join(by_name.values())


def _by_section(text: str) -> dict[str, str]:
    """Each top-level section's lines by its first word; a comment belongs to the section below it."""
    starts = re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)
    return {part.partition(":")[0]: part.rstrip("\n") + "\n" for part in starts if part.strip()}
