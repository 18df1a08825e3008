"""A question that AWS did not answer."""

from __future__ import annotations


class UnansweredError(Exception):
    """A rule asked the account and got no answer; the rule cannot be judged.

    Args:
        message: what was not answered, and why.
        hint: what to do about it.
        fatal: whether the account as a whole is out of reach, rather than one question not allowed.
    """

    def __init__(self, message: str, hint: str, *, fatal: bool = True) -> None:
        super().__init__(message)
        self.hint = hint
        self.fatal = fatal
