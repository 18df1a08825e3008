"""Readers see the old file or the new one, with the mode and owner that it should have, whatever ends the writer."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from podwright_common import atomic_file
from podwright_common.atomic_file import new_file, rename_durably, replace_link, write_file


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of what was synced to the disk, and the renames, in their order."""
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(Path, "replace", rename)
    return events


def test_a_file_and_its_name_outlive_a_loss_of_power(tmp_path: Path, synced: list[str]) -> None:
    """The content is on the disk before the name leads to it, and the name before the writer goes on."""
    assert write_file(tmp_path / "file", "text")
    (tmp_path / "part").write_text("more")
    rename_durably(tmp_path / "part", tmp_path / "file")
    assert synced == ["file", "rename", "folder"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_same_file_is_not_written_again(tmp_path: Path, synced: list[str]) -> None:
    """Another content or mode is a change; the same ones are none."""
    path = tmp_path / "folder" / "file"
    changes = [write_file(path, "text", mode=mode) for mode in (0o600, 0o600, 0o640)]
    changes += [write_file(path, content, mode=0o640) for content in (b"text", "other")]
    assert changes == [True, False, True, False, True]
    assert synced.count("rename") == 3
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("other", 0o640)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_without_a_mode_follows_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """A group that shares its folder reads and writes the files of all."""
    tmp_path.chmod(0o2775)
    before = os.umask(umask)
    try:
        with new_file(tmp_path / "file") as file:
            file.write(b"text")
    finally:
        os.umask(before)
    status = (tmp_path / "file").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (mode, tmp_path.stat().st_gid)


@pytest.mark.parametrize("mode", [None, 0o600])
def test_a_failed_writer_leaves_the_old_file_alone(tmp_path: Path, mode: int | None) -> None:
    """Neither an error nor Ctrl-C leaves a part of the new file."""
    path = tmp_path / "file"
    path.write_text("old")

    def fail(error: BaseException) -> None:
        with new_file(path, mode=mode) as file:
            file.write(b"half")
            raise error

    for error in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    """SIGKILL leaves a part beside the file, which the next writer of this host removes."""
    path = tmp_path / "file"
    path.write_text("old")
    script = """
import os, signal, sys
from pathlib import Path
from podwright_common.atomic_file import new_file
with new_file(Path(sys.argv[1]), mode=0o644) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert (killed.returncode, path.read_text()) == (-signal.SIGKILL, "old")
    assert (tmp_path / f".file.{socket.gethostname()}").read_text() == "half"
    assert write_file(path, "new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])


@pytest.mark.parametrize("mode", [None, 0o600])
def test_a_second_writer_takes_another_name(tmp_path: Path, mode: int | None) -> None:
    """While one writer is at work another one writes the whole file; the last to end wins."""
    path = tmp_path / "file"
    with new_file(path, mode=mode) as slow:
        slow.write(b"slow")
        with new_file(path, mode=mode) as fast:
            fast.write(b"fast")
        assert path.read_bytes() == b"fast"
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"slow", [path])


def test_a_folder_that_cannot_be_locked_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks gets a random temporary name."""

    def refuse(_descriptor: int) -> bool:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(atomic_file, "try_lock", refuse)
    assert write_file(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_link_is_replaced_and_never_missing(tmp_path: Path) -> None:
    """A file, an older link or nothing becomes the link; what a killed process left is removed."""
    link = tmp_path / "link"
    (tmp_path / f".link.{socket.gethostname()}").symlink_to("nowhere")
    for target in ("first", "second"):
        replace_link(link, target)
        assert os.readlink(link) == target  # noqa: PTH115 — the link itself
    link.unlink()
    link.write_text("file")
    replace_link(link, tmp_path / "third")
    assert (link.readlink(), list(tmp_path.iterdir())) == (tmp_path / "third", [link])
