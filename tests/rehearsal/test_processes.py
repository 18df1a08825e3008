"""Programs of a rehearsal: their output is kept and their end is certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podwright_rehearsal import processes


def gone(pid: int, *, within_s: float = 600.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_output_is_kept_and_passed_on(tmp_path: Path) -> None:
    """A program's lines reach the log and the listener, and its exit code is returned."""
    lines: list[str] = []
    code = processes.run_logged(
        ["sh", "-c", "echo one; echo two >&2; exit 3"],
        log=tmp_path / "log",
        cwd=tmp_path,
        environment=os.environ,
        on_line=lines.append,
    )
    assert code == 3
    assert lines == ["one", "two"]
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_an_interrupted_program_is_ended_with_its_children(tmp_path: Path) -> None:
    """An interrupted rehearsal ends the program, and what it started in other sessions."""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.run_logged(
            ["sh", "-c", "setsid sleep 3600 & echo $!; echo $$; wait"],
            log=tmp_path / "log",
            cwd=tmp_path,
            environment=os.environ,
            on_line=interrupt,
        )
    assert all(gone(pid) for pid in pids)


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """After its limit a program is killed with what it started, and the log says why."""
    command, log = ["sh", "-c", "sleep 3600; echo late"], tmp_path / "log"
    code = processes.run_logged(command, log=log, cwd=tmp_path, environment=os.environ, limit_s=0.2)
    assert (code, log.read_text()) == (-signal.SIGKILL, "killed after 0.2 s\n")


ORPHANS = """
import subprocess, sys
from podwright_rehearsal import processes
def orphan():
    command = ["sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 & echo $!"]
    return int(subprocess.run(command, capture_output=True, text=True).stdout)
processes.adopt_orphans()
"""
LAST_ONE = """
last = []
def is_over():
    if not last:
        last.append(orphan())
    return True
processes.end_all(is_over)
print(last[0])
"""


def run(script: str) -> list[str]:
    """Run a Python script and return the words that it prints."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    ).stdout.split()


def test_orphans_are_ended() -> None:
    """A grandchild whose parent is gone is found and ended."""
    found, pid = run(f"{ORPHANS}pid = orphan()\nprint(pid in processes.end_descendants(), pid)")
    assert found == "True"
    assert gone(int(pid))


def test_a_process_that_starts_last_is_ended_too() -> None:
    """A process that a program starts just before its end is ended too."""
    (pid,) = run(ORPHANS + LAST_ONE)
    assert gone(int(pid))
