"""One permission that a call needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PERMISSIONS_PATH = "/_permissions"  # The stand-in's own, not AWS's: lists what principals needed.


@dataclass(frozen=True, kw_only=True)
class Permission:
    """One action on one resource, in the context of its request."""

    action: str
    resource: str
    context: Mapping[str, list[str]] = field(default_factory=dict, hash=False)
    """Values by condition key, in lower case."""
    by_handler: bool = False
    """True if a handler of Cloud Control needs it after the call was accepted."""
