"""``pytest --report-file FILE``: one line of JSON per report of a test, for a program that reads a run's result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--report-file``."""
    parser.addoption("--report-file", type=Path, metavar="FILE", help="write each test's reports as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Record the whole run, not a worker's part of it."""
    path: Path | None = config.getoption("--report-file")
    if path and not hasattr(config, "workerinput"):
        path.write_text("")
        config.pluginmanager.register(ReportFile(path))


class ReportFile:
    """Appends reports to a file, so that those of a run which is killed are there too."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append the report of a test's set-up, call or teardown."""
        self._append(report, report.when)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Append a file that cannot be collected."""
        if report.failed:
            self._append(report, "collect")

    def _append(self, report: pytest.TestReport | pytest.CollectReport, when: str) -> None:
        line = {
            "nodeid": report.nodeid,
            "when": when,
            "outcome": report.outcome,
            "error": report.longreprtext if report.failed else "",
            "sections": report.sections,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
