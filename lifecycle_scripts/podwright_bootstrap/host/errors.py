"""The errors of a boot: one that ends it, a program that failed, a step whose time is up."""

from __future__ import annotations


class BootstrapError(RuntimeError):
    """The boot cannot continue; ``hint`` has the solution. A retry would not help."""

    def __init__(self, why: str, *, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class CommandError(BootstrapError):
    """A program failed, did not end in time or is missing. A retry may help."""


class SlowCommandError(CommandError):
    """A program did not end in time."""


class TimeLimitError(BaseException):
    """A step used up its time. Like ``KeyboardInterrupt``, it passes handlers of ordinary errors."""
