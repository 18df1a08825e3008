"""Wait for a condition until a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from podwright_rehearsal.hosts.host_errors import HostError

BUSY_SHARE = 0.25  # Questions start processes on the machine's shared cores: they get this share of the time.
MOST_PAUSE_S = 5.0


def wait_for(
    condition: Callable[[], bool], *, timeout_s: float, description: Callable[[], str], pause_s: float = 0.05
) -> None:
    """Return when the condition holds; ask again after a pause, a longer one where the answer took long.

    Raises:
        HostError: it did not within `timeout_s`; `what` describes the wait.
    """
    end = time.monotonic() + timeout_s
    while True:
        asked_s = time.monotonic()
        if condition():
            return
        answered = time.monotonic()
        if answered > end:
            raise HostError(f"after {timeout_s:g} s still waiting for {description()}")
        time.sleep(max(pause_s, min(MOST_PAUSE_S, (answered - asked_s) * (1 / BUSY_SHARE - 1))))
