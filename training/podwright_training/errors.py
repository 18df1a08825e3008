"""Errors that speak to the user."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """Something the user can put right: the message says what was given, what is allowed, what to do. Exit status 2."""


class ConfigError(UserError):
    """All problems of a configuration, one per line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))
