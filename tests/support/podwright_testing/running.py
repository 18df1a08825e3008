"""Print failures and tests that took minutes while a run goes on, and at SIGTERM the tests that still ran.

A run that is killed prints no summary: without these lines nobody knows what it waited for.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

import pytest

LONG_S = 60
_began_s = time.monotonic()
_running: dict[str, float] = {}  # since when
_wall_s: dict[str, float] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Watch the whole run, not a worker's part of it."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Running(config))


class Running:
    """Follows a run's tests by their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        signal.signal(signal.SIGTERM, self.end)

    def say(self, line: str) -> None:
        """Print a line with the time since the start, below the dots."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        minutes, seconds = divmod(int(time.monotonic() - _began_s), 60)
        reporter.write_line(f"\n[{minutes:02}:{seconds:02}] {line}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that starts."""
        _running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print what failed at once, and what took long at its end."""
        _wall_s[report.nodeid] = _wall_s.get(report.nodeid, 0) + report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.say(f"{report.when} of {report.nodeid} failed: {getattr(crash, 'message', '')[:500]}")
        if report.when == "teardown":
            _running.pop(report.nodeid, None)
            wall_s = _wall_s.pop(report.nodeid)
            if wall_s >= LONG_S:
                self.say(f"{wall_s:.0f} s: {report.nodeid}")

    def end(self, _signal: int, _frame: FrameType | None) -> None:
        """Print what runs, then end as after Ctrl+C, with a summary."""
        for nodeid, since_s in _running.items():
            self.say(f"ended after {time.monotonic() - since_s:.0f} s: {nodeid}")
        raise KeyboardInterrupt
