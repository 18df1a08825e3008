"""Wait for a condition until a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from podwright_rehearsal.hosts.errors import HostError


def wait_for(
    condition: Callable[[], bool], *, timeout_s: float, what: Callable[[], str], pause_s: float = 0.05
) -> None:
    """Return when the condition holds.

    Raises:
        HostError: it did not within `timeout_s`; `what` says what was waited for.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise HostError(f"after {timeout_s:g} s still waiting for {what()}")
        time.sleep(pause_s)
