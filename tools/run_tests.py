"""Run the tests, and those that failed once more, alone, which separates a broken product from a busy machine.

    python tools/run_tests.py [PYTEST'S OPTIONS]

A test that fails twice fails the run. One that passes when nothing runs beside it is *unsteady*: it is printed with
both outputs and the state of its hosts, and the run passes. An unsteady test is a defect to be understood. More than
``MOST_UNSTEADY`` in one run are no accident, and fail it at once. Tests that wait for the same fixture fail together
when it does, so they count as one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

MOST_UNSTEADY = 2


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of one run of pytest: its exit status, and a dictionary per report as ``report_file`` writes them."""

    status: int
    reports: Sequence[dict[str, object]]

    @property
    def failed_tests(self) -> list[str]:
        """Return the ids of tests that failed, in the order of their failures."""
        return list(dict.fromkeys(str(report["nodeid"]) for report in self.reports if report["outcome"] == "failed"))

    @property
    def may_be_tried_again(self) -> bool:
        """Return whether tests failed, and nothing else: a file that cannot be collected hides its tests."""
        is_collected = not any(report["when"] == "collect" for report in self.reports)
        return self.status == pytest.ExitCode.TESTS_FAILED and bool(self.failed_tests) and is_collected

    @property
    def causes(self) -> set[str]:
        """Return a name per failure: the test's, or its file's where a fixture failed."""
        failures = [report for report in self.reports if report["outcome"] == "failed"]
        files = {str(report["nodeid"]).partition("::")[0] for report in failures if report["when"] == "setup"}
        tests = {str(report["nodeid"]) for report in failures if report["when"] != "setup"}
        return files | tests

    def output(self, nodeid: str) -> str:
        """Return what pytest has of a test: each failure's traceback, captured output and states of hosts."""
        parts = []
        for report in (report for report in self.reports if report["nodeid"] == nodeid):
            parts.append(f"---- {report['when']} {report['outcome']}\n{report['error']}")
            parts += [f"---- {title}\n{text}" for title, text in report["sections"]]  # type: ignore[attr-defined]
        return "\n".join(parts)


def main(options: Sequence[str]) -> int:
    """Run pytest with the options, again if little failed; return the exit status."""
    first = attempt(options)
    if not first.may_be_tried_again:
        return first.status
    if len(first.causes) > MOST_UNSTEADY:
        print(f"{len(first.causes)} failures, more than the {MOST_UNSTEADY} that are tried again: the run fails")
        return first.status
    heading(f"{len(first.failed_tests)} failed: tried once more, alone")
    second = attempt(["--verbosity=1", *first.failed_tests])
    if second.status:
        print_again("failed twice", second.failed_tests)
        return second.status
    for nodeid in first.failed_tests:
        heading(f"unsteady: {nodeid}")
        print(f"==== beside other tests\n{first.output(nodeid)}\n==== alone\n{second.output(nodeid)}")
    print_again("unsteady: a defect to be understood, of the test or of the product", first.failed_tests)
    return 0


def attempt(options: Sequence[str]) -> Attempt:
    """Run pytest in a process of its own, and read its reports. SIGTERM is passed on: pytest prints what ran."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reports"
        process = subprocess.Popen([sys.executable, "-m", "pytest", f"--report-file={path}", *options])

        def end(_signal: int, _frame: FrameType | None) -> None:
            process.terminate()

        signal.signal(signal.SIGTERM, end)
        signal.signal(
            signal.SIGINT, lambda *_: None
        )  # a terminal sends Ctrl-C to pytest too, which then ends by itself
        status = process.wait()
        lines = path.read_text().splitlines() if path.exists() else []
    return Attempt(status=status, reports=[json.loads(line) for line in lines])


def heading(text: str) -> None:
    """Print a line that stands out."""
    print(f"\n{f' {text} ':=^120}", flush=True)


def print_again(verdict: str, nodeids: Sequence[str]) -> None:
    """Print the verdict's tests last, where a reader looks."""
    heading(verdict)
    print("\n".join(nodeids), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
