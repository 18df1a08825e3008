"""Errors of reading and checking a settings file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from podwright.check.findings import Finding, Level, render
from podwright.errors import PodwrightError
from podwright_common.exit_status import WRONG_INPUT
from podwright_common.terminal import columns

# What each code means; `podwright explain CODE` prints it.
CODES = {
    "unreadable-file": "The settings file is missing, not a file, too large or not UTF-8 text.",
    "bound-to-place": "`podwright move` goes to another zone or region, and this value exists only in the old one.",
    "invalid-run": "The file of `--run` is unreadable, or has a wrong option or key.",
}


class InputError(PodwrightError):
    """A file that a command was given is unusable; ``code`` is the finding's."""

    exit_status = WRONG_INPUT
    code = ""

    def finding(self) -> Finding:
        """Return the error as a finding without a position, for ``--json``."""
        return Finding(Level.ERROR, self.code, (), str(self), self.hint)


class UnreadableFileError(InputError):
    """The settings file is missing, or it is not text."""

    code = "unreadable-file"


class InvalidRunError(InputError):
    """The file of ``--run`` has a wrong option or key."""

    code = "invalid-run"


class InvalidSettingsError(PodwrightError):
    """A settings file has errors; the message shows every finding as ``podwright check`` prints it."""

    def __init__(self, *, file: Path, text: str, findings: Sequence[Finding]) -> None:
        super().__init__(render(findings, file=file, text=text))
        self.file = file
        self.findings = tuple(findings)
        self._text = text

    def render(self) -> str:
        """Return the findings alone: each names the file."""
        width = columns(sys.stderr) if sys.stderr.isatty() else None
        return render(self.findings, file=self.file, text=self._text, columns=width)


class UnansweredError(PodwrightError):
    """AWS did not answer a rule's question, so the rule has no result.

    Args:
        message: which question, and why there is no answer.
        hint: what to do.
        fatal: whether the whole account is out of reach, rather than one question denied.
    """

    def __init__(self, message: str, hint: str, *, fatal: bool = True) -> None:
        super().__init__(message, hint)
        self.fatal = fatal
