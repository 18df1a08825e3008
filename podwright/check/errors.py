"""Errors of reading and checking a settings file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from podwright.check.findings import Finding, render
from podwright.errors import PodwrightError


class UnreadableFileError(PodwrightError):
    """The settings file is missing, or it is not text."""

    exit_status = 2


class InvalidRunError(PodwrightError):
    """The file of ``--run`` has a wrong option."""

    exit_status = 2


class InvalidSettingsError(PodwrightError):
    """A settings file has errors; the message shows every finding as ``podwright check`` prints it."""

    def __init__(self, *, file: Path, text: str, findings: Sequence[Finding]) -> None:
        super().__init__(render(findings, file=file, text=text))
        self.file = file
        self.findings = tuple(findings)

    def render(self) -> str:
        """Return the findings alone: each names the file."""
        return str(self)


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
