"""Of all processes that take a lock one has it, and its end frees it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podwright_common.file_lock import locked, open_lock, try_lock

HOLDER = """
import sys, time
from pathlib import Path
from podwright_common.file_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


class BusyError(Exception):
    """Another process has the lock."""


def refuse() -> None:
    """Refuse to wait."""
    raise BusyError


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_is_free_when_its_holder_was_killed(tmp_path: Path, kind: str) -> None:
    """Another process does not get the lock while its holder lives, and gets it when that is gone."""
    path = tmp_path if kind == "folder" else tmp_path / "new folder" / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError), locked(path, before_waiting=refuse):
            pass
        waits = []

        def kill() -> None:
            waits.append(path)
            holder.send_signal(signal.SIGKILL)

        with locked(path, before_waiting=kill):
            assert waits == [path]
        with locked(path, before_waiting=refuse):
            assert holder.wait(600) == -signal.SIGKILL


def test_a_lock_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    """Taking a lock neither follows nor empties what somebody planted."""
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "victim").read_text() == "untouched"


def test_a_lock_keeps_its_text(tmp_path: Path) -> None:
    """A lock's file may say who has it; opening it does not remove that."""
    (tmp_path / "lock").write_text("host 1")
    descriptor = open_lock(tmp_path / "lock")
    assert try_lock(descriptor)
    with (tmp_path / "lock").open() as other:
        assert not try_lock(other)
        assert other.read() == "host 1"
