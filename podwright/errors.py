"""The root of podwright's errors: the command line catches this one class."""

from __future__ import annotations

from podwright_common.exit_status import FAILED


class PodwrightError(Exception):
    """A problem that the user can solve; the message says what was given, what is allowed and what to do.

    Args:
        message: one sentence, or the output of the program that failed.
        hint: what to do, where the message does not say it.

    ``exit_status`` is the command's: 1 if the work failed, 2 if the input is wrong.
    """

    exit_status = FAILED

    def __init__(self, message: object = "", hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def render(self) -> str:
        """Return the text for the terminal."""
        return f"podwright: {self}: {self.hint}" if self.hint else f"podwright: {self}"
