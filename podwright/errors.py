"""The root of podwright's errors."""

from __future__ import annotations


class PodwrightError(Exception):
    """Something the user can put right; the message says what was given, what is allowed and what to do."""
