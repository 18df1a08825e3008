"""The account's clock. Tests stop it to look at operations in progress, which then do not end."""

from __future__ import annotations

import time

PATH = "/_clock"  # The stand-in's own paths begin with an underscore.

_stopped_at: float | None = None


def now() -> float:
    """Return the account's time, in seconds since the epoch."""
    return time.time() if _stopped_at is None else _stopped_at


def stop() -> None:
    """Let the time stand still."""
    global _stopped_at  # noqa: PLW0603 - a process is one account, and has one clock
    _stopped_at = now()


def resume() -> None:
    """Return to the time of this machine."""
    global _stopped_at  # noqa: PLW0603
    _stopped_at = None
