"""The error of a host, and the end of a log for its message."""

from __future__ import annotations

from pathlib import Path

from podwright.errors import PodwrightError


class HostError(PodwrightError):
    """A host could not be started, reached or asked; the message names it and ends with its last words."""


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, and its path."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join([*text, f"(whole log: {log})"])
