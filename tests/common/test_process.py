"""A process is asked for by its id, and ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys

from podwright_common.process import exit_with_parent, is_alive

WATCH = "exit_with_parent(int(sys.argv[1]), poll_s=0.01); time.sleep(60)"
CHILD = f"import sys, time; from podwright_common.process import exit_with_parent; {WATCH}"
PARENT = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])"


def test_a_process_lives_until_it_has_been_waited_for() -> None:
    """Its id is free only then; the first process, of another user or not, lives always."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(child.pid)
    child.communicate(b"\n")
    assert not is_alive(child.pid)
    assert is_alive(1)


def test_a_child_exits_after_its_parent() -> None:
    """The pipe, which both write to, is closed when both have ended; without the watch the child would sleep on."""
    subprocess.run([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, check=True, timeout=50)


def test_a_process_whose_parent_lives_goes_on() -> None:
    """The watch of a living parent ends nothing."""
    exit_with_parent(os.getppid(), poll_s=0.01)
    assert is_alive(os.getpid())
