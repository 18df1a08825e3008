"""A node that writes much to one pipe keeps nobody waiting at another one; the shell of this machine is the node."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from podwright.operations.access.drain import TAIL_BYTES
from podwright.operations.access.remote import Remote, RemoteError, quoted
from podwright.operations.jobs.fetch import RemoteFile, _bring, _list
from podwright.operations.jobs.upload import send

PIPE_BYTES = 65536  # Linux's: who writes more waits for a reader
NOISE = f"yes noise | head -c {4 * PIPE_BYTES} >&2"


@pytest.fixture
def node() -> Remote:
    """A node whose ssh is a shell of this machine; one that nobody reads ends, so that the test fails."""
    shell = ("timeout", "300", "sh", "-c", 'eval "$1"')
    return Remote(cast("Any", None), cast("Any", SimpleNamespace(name="node")), shell)


@pytest.mark.parametrize("output", ["echo 7", f"yes | head -c {4 * PIPE_BYTES}; echo 7"])
def test_submit_reads_what_a_node_prints(node: Remote, tmp_path: Path, output: str) -> None:
    """More than a pipe holds, on either stream, after the files have come."""
    answer = send(node, str(tmp_path / "run"), {"a.txt": b"content"}, f"{NOISE}; {output}")
    assert answer.splitlines()[-1] == "7"
    assert (tmp_path / "run" / "a.txt").read_bytes() == b"content"


@pytest.mark.parametrize("stream", ["2", "1"])
def test_submit_sends_to_a_node_that_prints_first(node: Remote, tmp_path: Path, stream: str) -> None:
    """A shell whose profile prints much before it reads the files: both get through."""
    noisy = Remote(node.cluster, node.node, ("sh", "-c", f'yes | head -c {4 * PIPE_BYTES} >&{stream}; eval "$1"'))
    send(noisy, str(tmp_path / "run"), {"a.bin": bytes(16 * PIPE_BYTES)}, "true")
    assert (tmp_path / "run" / "a.bin").stat().st_size == 16 * PIPE_BYTES


def test_submit_does_not_wait_for_a_program_in_the_background(
    node: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that a job's submission left behind keeps the pipes open; the command ends all the same."""
    monkeypatch.setattr("podwright.operations.access.drain.CLOSE_LIMIT_S", 0.2)
    answer = send(node, str(tmp_path / "run"), {"a": b""}, f"sleep 3600 & echo $! > {tmp_path}/pid; echo 7")
    assert answer == "7\n"
    subprocess.run(["kill", (tmp_path / "pid").read_text().strip()], check=True)


def test_the_last_line_of_much_is_the_reason(node: Remote, tmp_path: Path) -> None:
    """Of endless errors the end is kept."""
    with pytest.raises(RemoteError, match=r"^node: disk full$"):
        send(node, str(tmp_path / "run"), {"a": b""}, f"yes | head -c {3 * TAIL_BYTES} >&2; echo disk full >&2; exit 4")


def test_fetch_reads_what_tar_complains_about(node: Remote, tmp_path: Path) -> None:
    """A warning for each of ten thousand files beside the archive of the others."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.txt").write_text("content")
    files = [RemoteFile("a.txt", 7, 0.0), *(RemoteFile(f"gone-{number}", 1, 0.0) for number in range(10_000))]
    loud = Remote(node.cluster, node.node, ("sh", "-c", f'{NOISE}; eval "$1"'))
    with pytest.raises(RemoteError, match="node: tar: "):
        list(_bring(loud, str(tmp_path / "run"), files, tmp_path / "here"))
    assert (tmp_path / "here" / "a.txt").read_text() == "content"


def test_a_follower_shows_lines_while_errors_come(node: Remote, capfd: pytest.CaptureFixture[str]) -> None:
    """Output goes to the terminal while more errors come than a pipe holds."""
    node.show(f"{NOISE}; {quoted('echo', 'line')}")
    assert capfd.readouterr().out == "line\n"


def test_a_start_file_that_prints_changes_no_answer(node: Remote, tmp_path: Path) -> None:
    """Files, their archive and a job's number begin behind the greeting of a shell."""
    greeting = 'echo "Welcome to {node}"; eval "$1"'
    friendly = Remote(node.cluster, node.node, ("sh", "-c", greeting))
    folder = str(tmp_path / "run")
    assert friendly.run("id -u").strip().isdecimal()
    assert send(friendly, folder, {"a.txt": b"content"}, "echo 7") == "7\n"
    (file,) = _list(friendly, folder, "run", without=())
    assert list(_bring(friendly, folder, [file], tmp_path / "here")) == ["a.txt"]


def test_a_node_that_runs_something_else_is_named(node: Remote, tmp_path: Path) -> None:
    """A command that sshd forces ends well and has done nothing."""
    forced = Remote(node.cluster, node.node, ("sh", "-c", "echo no commands here"))
    for ask in (lambda: forced.run("id -u"), lambda: send(forced, str(tmp_path / "run"), {"a": b""}, "echo 7")):
        with pytest.raises(RemoteError, match="node did not run the command: it printed no commands here"):
            ask()
