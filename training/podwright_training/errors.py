"""Define the errors that are shown to the user without a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """An error the user can fix: the message has the given value, the allowed ones and the solution. Exit status 2."""


class ConfigError(UserError):
    """All problems of a configuration, one per line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class LostRanksError(RuntimeError):
    """Another rank of the job is gone or late, and has its own error. A new start may succeed. Exit status 1."""
