"""Verdicts of ``tools/run_tests.py`` on small test files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
CONFTEST = '''
from pathlib import Path
import pytest
pytest_plugins = ["podwright_testing.report_file", "podwright_testing.failure_state", "podwright_testing.running"]

@pytest.fixture
def attempt(request):
    """The number of this attempt at the test."""
    path = Path(request.node.name + ".attempts")
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    print("attempt", len(path.read_text()))
    return len(path.read_text())

@pytest.fixture(scope="module")
def cluster():
    path = Path("cluster.attempts")
    if not path.exists():
        path.write_text("x")
        raise RuntimeError("the cluster does not start")
'''


def run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run the tool on a file of tests, as `make test` does: several workers, from the folder of the tests."""
    write(folder, tests)
    return subprocess.run(
        [*command(), "--numprocesses=2", "--dist=loadfile"],
        check=False,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def write(folder: Path, tests: str) -> None:
    """Write a folder that pytest runs without this checkout's configuration."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_steps.py").write_text(tests)


def command() -> list[str]:
    """Return the tool's command without options."""
    return [sys.executable, str(CHECKOUT / "tools" / "run_tests.py")]


def environment() -> dict[str, str]:
    """Return this environment with the plugins on the path, and without the variables of a worker of xdist."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**inherited, "PYTHONPATH": str(CHECKOUT / "tests" / "support")}


def test_an_unsteady_test_passes_the_run_and_is_printed_with_both_outputs(tmp_path: Path) -> None:
    """A test that passes alone is listed last, with the outputs of both attempts and the state of the machine."""
    done = run(tmp_path, "def test_late(attempt):\n    assert attempt == 2\n\ndef test_steady(): pass\n")
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith("test_steps.py::test_late")
    beside, alone = done.stdout.partition("unsteady: test_steps.py::test_late")[2].split("==== alone")
    assert "assert 1 == 2" in beside
    assert "attempt 1" in beside
    assert "State of the machine" in beside
    assert "attempt 2" in alone
    assert "1 failed, 1 passed" in done.stdout


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """The second failure decides, and an unsteady test beside it does not hide it."""
    tests = "def test_wrong():\n    assert False\n\ndef test_late(attempt):\n    assert attempt == 2\n"
    done = run(tmp_path, tests)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert done.stdout.rstrip().endswith("test_steps.py::test_wrong")


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    """More than two failures fail the run, also if each would pass alone."""
    done = run(tmp_path, "".join(f"def test_{n}(attempt):\n    assert attempt == 2\n\n" for n in range(3)))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "3 failures, more than the 2 that are tried again" in done.stdout
    assert (tmp_path / "test_0.attempts").read_text() == "x"


def test_a_fixture_that_fails_counts_once(tmp_path: Path) -> None:
    """Tests that wait for the same fixture fail for one cause, and are tried again together."""
    done = run(tmp_path, "".join(f"def test_{n}(cluster): pass\n\n" for n in range(4)))
    assert done.returncode == 0, done.stdout
    assert "4 failed: tried once more, alone" in done.stdout
    assert "the cluster does not start" in done.stdout.partition("unsteady:")[2]


@pytest.mark.parametrize(("tests", "status"), [("", 5), ("import missing_module\n", 1), ("def test_a(: pass\n", 1)])
def test_a_run_that_does_not_get_as_far_as_its_tests_fails(tmp_path: Path, tests: str, status: int) -> None:
    """No tests, or files that cannot be collected, are never a success."""
    done = run(tmp_path, tests)
    assert done.returncode == status, done.stdout


def test_sigterm_ends_pytest_too(tmp_path: Path) -> None:
    """SIGTERM to the tool ends pytest, which names the tests that ran."""
    write(
        tmp_path, "import pathlib, time\n\ndef test_long():\n    pathlib.Path('began').touch()\n    time.sleep(300)\n"
    )
    process = subprocess.Popen(
        [*command(), "--numprocesses=1"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not (tmp_path / "began").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "test_steps.py::test_long" in output
