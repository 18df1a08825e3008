"""``pytest --slowest N``: the N tests that took longest, with what each proves."""

from __future__ import annotations

import inspect
import resource
from collections import defaultdict
from collections.abc import Generator

import pytest

OUTCOMES = ("passed", "failed", "error", "skipped", "")  # "" are fixtures that passed
_spent_s = 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--slowest``."""
    parser.addoption("--slowest", type=int, default=0, metavar="N", help="list N tests that took longest. Default: 0")


def cpu_s() -> float:
    """Return the CPU time of this process and of those that it waited for."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a test's CPU time since the last report, and its docstring."""
    global _spent_s
    report = yield
    before, _spent_s = _spent_s, cpu_s()
    proves = inspect.getdoc(getattr(item, "function", None)) or ""
    report.user_properties += [("cpu_s", _spent_s - before), ("proves", " ".join(proves.split()))]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tests that took longest; the first that uses a fixture has its time, as the last has its end."""
    if not (count := terminalreporter.config.getoption("--slowest")):
        return
    wall: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    proves: dict[str, str] = {}
    for report in (report for outcome in OUTCOMES for report in terminalreporter.getreports(outcome)):
        properties = dict(report.user_properties)
        wall[report.nodeid] += report.duration
        cpu[report.nodeid] += properties["cpu_s"]
        proves[report.nodeid] = properties["proves"]
    terminalreporter.section(f"slowest {count}: seconds, seconds of CPU, test, what it proves")
    for nodeid in sorted(wall, key=lambda nodeid: -wall[nodeid])[:count]:
        terminalreporter.write_line(f"{wall[nodeid]:7.1f} {cpu[nodeid]:7.1f}  {nodeid}\n{'':17}{proves[nodeid]}")
