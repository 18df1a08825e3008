"""Repeat pytest-timeout's alarm, so that it also ends what a test waits for while it cleans up."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
import pytest_timeout

AGAIN_S = 120


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: pytest_timeout.Settings) -> Generator[None, object, object]:
    """Let the alarm ring again and again: its first failure is raised in a block that may wait at its own end."""
    answer = yield
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_S)
    return answer
