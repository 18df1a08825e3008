"""Whatever a user of the cluster puts where a file should be, an operator's command reads it, or says what it is."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from podwright.operations.access.remote import Remote, RemoteError
from podwright.operations.access.ssh_config import AUTHORIZE
from podwright.operations.jobs import fetch, logs
from podwright.operations.moving.on_node import files, people

NODE = Remote(None, SimpleNamespace(name="node"), ("timeout", "60", "sh", "-c", 'eval "$2"', "ssh"))  # type: ignore[arg-type]


def bound(path: Path) -> None:
    """Make a socket; a path may be longer than its name can be."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.bind(path.name)
    finally:
        os.chdir(before)


STRANGE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "socket": bound,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_log_that_is_no_file_is_one_line(tmp_path: Path, kind: str) -> None:
    """`podwright logs` neither waits for the writer of a pipe nor reads a device that has no end."""
    path = tmp_path / "train.log"
    STRANGE[kind](path)
    with pytest.raises(RemoteError, match=r"train\.log") as refusal:
        logs._show_file(NODE, str(path), Namespace(lines=9, json=False))
    assert refusal.value.status != 124  # timeout's
    refuse = logs.REGULAR.format(paths=f"'{path}'")
    if kind != "loop":  # which tail says
        with pytest.raises(RemoteError, match="is not a regular file"):
            NODE.run(refuse + "true")


def test_a_line_without_end_is_cut(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Of a sparse file of many gigabytes without a line's end, the operator's machine gets the last part."""
    path = tmp_path / "train.log"
    with path.open("wb") as file:
        file.truncate(logs.LIMIT_BYTES + 5)
    logs._show_file(NODE, str(path), Namespace(lines=9, json=False))
    sys.stdout.flush()
    assert len(capfdbinary.readouterr().out) == logs.LIMIT_BYTES


def test_a_run_with_strange_files_is_fetched(tmp_path: Path) -> None:
    """Regular files arrive, hard links and names that are not UTF-8 among them; the rest is left out."""
    run = tmp_path / "run"
    run.mkdir()
    for kind, make in STRANGE.items():
        make(run / kind)
    os.mkfifo(run / "train.sbatch")
    (run / "one").write_text("text")
    os.link(run / "one", run / "two")
    (run / os.fsdecode(b"caf\xe9")).write_text("latin")
    (run / "a\nb").write_text("line")
    assert fetch._price(SimpleNamespace(run=NODE.run, cluster=SimpleNamespace(groups=())), str(run)) is None  # type: ignore[arg-type]
    listed = fetch._list(NODE, str(run), "run", without=())
    to = tmp_path / "to"
    assert sorted(fetch._bring(NODE, str(run), listed, to)) == sorted(path.name for path in to.iterdir())
    assert {os.fsencode(path.name): path.read_text() for path in to.iterdir()} == {
        b"one": "text", b"two": "text", b"caf\xe9": "latin", b"a\nb": "line",
    }  # fmt: skip


def test_what_takes_the_name_of_a_file_is_not_packed(tmp_path: Path) -> None:
    """A link or a pipe that replaces a file after it was listed is neither followed nor waited for."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("kept", "linked", "piped"):
        (run / name).write_text("text")
    listed = fetch._list(NODE, str(run), "run", without=())
    for name in ("linked", "piped"):
        (run / name).unlink()
    (run / "linked").symlink_to("/etc/passwd")
    os.mkfifo(run / "piped")
    assert list(fetch._bring(NODE, str(run), listed, tmp_path / "to")) == ["kept"]


@pytest.mark.parametrize("kind", STRANGE)
def test_keys_are_read_with_the_rights_of_their_owner(tmp_path: Path, kind: str) -> None:
    """A move counts the keys of every home; a home with something else has none."""
    folder = tmp_path / ".ssh"
    folder.mkdir()
    person = SimpleNamespace(pw_dir=str(tmp_path), pw_uid=os.geteuid(), pw_gid=os.getegid())
    STRANGE[kind](folder / "authorized_keys")
    assert people.keys(person) == []  # type: ignore[arg-type]


def test_a_move_reads_no_file_that_only_root_reads(tmp_path: Path) -> None:
    """A link of a user to root's file shows nothing of it, not even a hash."""
    if os.geteuid():
        pytest.skip("needs root")
    nobody = pwd.getpwnam("nobody")
    secret, keys = tmp_path / "secret", tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    secret.write_text("ssh-ed25519 AAAA root\n")
    secret.chmod(0o600)
    keys.symlink_to(secret)
    for folder in (keys.parent, *keys.parents[1:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    person = SimpleNamespace(pw_dir=str(tmp_path), pw_uid=nobody.pw_uid, pw_gid=nobody.pw_gid)
    assert people.keys(person) == []  # type: ignore[arg-type]
    secret.chmod(0o644)
    assert len(people.keys(person)) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", STRANGE)
def test_no_hash_of_what_has_replaced_a_file(tmp_path: Path, kind: str) -> None:
    """Between the look at a file and its hash, a user may put something else there."""
    STRANGE[kind](tmp_path / "sample")
    assert files.sha256(str(tmp_path / "sample")) == ""


@pytest.mark.parametrize("kind", STRANGE)
def test_a_key_is_not_added_to_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """`podwright ssh-config --authorize` says so."""
    (tmp_path / ".ssh").mkdir()
    STRANGE[kind](tmp_path / ".ssh" / "authorized_keys")
    line = AUTHORIZE.format(key="'ssh-ed25519 AAAA a'", done="done")
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert "done" not in done.stdout
    assert "not a regular file" in done.stdout or "Too many levels" in done.stderr or "No such device" in done.stderr
