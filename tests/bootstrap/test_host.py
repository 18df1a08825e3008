"""Programs, waits, files and locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from podwright_bootstrap.host import files, identity, process, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError, TimeLimitError
from podwright_bootstrap.storage.lock import locked

ME = identity.pwd.getpwuid(os.getuid()).pw_name


def test_output_and_exit_code_are_kept(capsys):
    """Both streams of a program go to the log and come back apart: a warning is no part of an answer."""
    outcome = process.run("sh", "-c", "echo one; echo two >&2; exit 3", timeout_s=10, check=False)
    assert (outcome.exit_code, outcome.output, outcome.errors) == (3, "one\n", "two\n")
    assert "| two" in capsys.readouterr().out


def test_a_failing_program_is_named_with_its_error():
    """The error names the program, its exit code and the lines with the reason."""
    with pytest.raises(CommandError, match=r"sh -c .* failed \(exit 4\): fatal: no way$"):
        process.run("sh", "-c", "echo start; echo fatal: no way; echo bye; exit 4", timeout_s=10)


def test_a_missing_program_is_named():
    """A program that is not installed is an error like another."""
    with pytest.raises(CommandError, match="no-such-program: no such program on this host"):
        process.run("no-such-program", timeout_s=10)


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path):
    """Past its time the whole process group is killed."""
    pid_file = tmp_path / "pid"
    for limit_s in _limits(pid_file):
        with pytest.raises(CommandError, match="did not end within"):
            process.run("sh", "-c", f"sleep 300 & echo $! > {pid_file}; wait", timeout_s=limit_s)
    _wait_for_end(int(pid_file.read_text()))


@pytest.mark.hosts  # needs root
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("process.run('sleep', '300', timeout_s={0})", "SlowCommandError: sleep 300 did not end within .*, nor when"),
        (
            "with waits.time_limit({0}): process.run('sleep', '300', timeout_s=600)",
            "TimeLimitError: not done within its",
        ),
    ],
)
def test_a_program_that_no_signal_ends_is_left(limits, said):
    """A program that outlives SIGKILL, as one that waits for a device, is an error like another that is slow."""
    for limit_s in (5, 60):
        script = (
            f"from podwright_bootstrap.host import process, waits; process.KILL_LIMIT_S = 0.2\n{limits.format(limit_s)}"
        )
        # The first program below unshare is init of its namespace: it does not end before a zombie there is gone, whose
        # parent, outside, stands still.
        command = ("unshare", "--pid", sys.executable, "-c", script)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as caller:
            init = _child_of(caller.pid)
            with subprocess.Popen(["nsenter", "--target", str(init), "--pid", "sleep", "300"]) as parent:
                _child_of(parent.pid)
                parent.send_signal(signal.SIGSTOP)
                errors = caller.communicate(timeout=600)[1]
                parent.kill()
        if re.search(said, errors):
            return
    pytest.fail(errors)


def test_a_program_that_hangs_once_is_asked_again(tmp_path):
    """A wait goes on when a program that it asks does not answer in time."""
    asked = tmp_path / "asked"
    answer = f"test -e {asked} || {{ touch {asked}; sleep 300; }}"
    waits.wait_until(
        lambda: process.run("sh", "-c", answer, timeout_s=0.5, check=False).exit_code == 0,
        event="an answer",
        limit_s=600,
        every_s=0.01,
    )


def test_a_daemon_that_keeps_the_output_open_does_not_keep_us_waiting():
    """The program's own end counts, not that of what it left running."""
    output = process.run("sh", "-c", "sleep 600 & echo $!", timeout_s=500).output
    os.kill(int(output), 9)


def test_a_step_that_runs_too_long_is_interrupted_with_its_program(tmp_path):
    """The time limit ends a running program and reaches the step as its own error."""
    pid_file = tmp_path / "pid"
    for limit_s in _limits(pid_file):
        with pytest.raises(TimeLimitError, match="not done within"), waits.time_limit(limit_s):
            process.run("sh", "-c", f"echo $$ > {pid_file}; exec sleep 300", timeout_s=600)
    _wait_for_end(int(pid_file.read_text()))


def test_an_action_is_tried_as_often_as_allowed(monkeypatch):
    """The last error comes through."""
    monkeypatch.setattr(waits, "PATIENCE", 0.001)
    calls = []

    def fail():
        calls.append(1)
        raise CommandError(f"failure {len(calls)}")

    with pytest.raises(CommandError, match="failure 3"):
        waits.retry(fail, attempts=3, pause_s=1, errors=(CommandError,))
    assert len(calls) == 3


def test_what_will_not_get_better_is_not_tried_again():
    """Errors that are no command's end the first attempt."""
    calls = []

    def fail():
        calls.append(1)
        raise BootstrapError("never")

    with pytest.raises(BootstrapError, match="never"):
        waits.retry(fail, attempts=3, pause_s=1, errors=(CommandError,))
    assert len(calls) == 1


def test_a_file_is_written_once(tmp_path):
    """Writing the same again changes nothing; another content or mode does; no temporary file is left."""
    path = tmp_path / "folder" / "file"
    assert files.write_file(path, "text", mode=0o600, owner=ME)
    assert not files.write_file(path, "text", mode=0o600, owner=ME)
    assert files.write_file(path, "text", mode=0o644, owner=ME)
    assert files.write_file(path, b"other", mode=0o644, owner=ME)
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("other", 0o644)
    assert [child.name for child in path.parent.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_is_left_as_it_was(tmp_path):
    """An unknown owner is found out before anything is touched."""
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(BootstrapError, match="no user nobody-here"):
        files.write_file(path, "new", owner="nobody-here")
    assert [child.name for child in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_a_held_lock_is_waited_for_within_bounds(tmp_path, monkeypatch):
    """A host that cannot get the lock names the host that has it."""
    monkeypatch.setattr(waits, "PATIENCE", 0.01)
    path = tmp_path / "lock"
    path.write_text("ip-10-1-0-9")
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with (
            pytest.raises(BootstrapError, match=r"waited 1 s for .*lock, held by ip-10-1-0-9"),
            locked(path, limit_s=100, every_s=2),
        ):
            pytest.fail("the lock was held by another")
    with locked(path, limit_s=100, every_s=2) as mine:
        assert mine


def test_a_lock_is_not_needed_for_what_is_done(tmp_path):
    """A host that finds the work done goes on without the lock."""
    path = tmp_path / "lock"
    path.touch()
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with locked(path, limit_s=100, every_s=2, unless=lambda: True) as mine:
            assert not mine


def test_of_many_hosts_one_has_the_lock(tmp_path):
    """Of two hundred that ask at the same time one does the work, all others go on when it is done."""
    done, worked, went_on = tmp_path / "done", [], []

    def host():
        with locked(tmp_path / "lock", limit_s=600, every_s=0.2, unless=done.exists) as mine:
            if mine and not done.exists():
                worked.append(1)
                time.sleep(0.5)
                done.touch()
        went_on.append(done.exists())

    threads = [threading.Thread(target=host) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worked == [1]
    assert went_on == [True] * 200


def test_what_a_killed_writer_left_is_gone_after_the_next(tmp_path):
    """A temporary file of a boot that was killed does not stay beside the file."""
    path = tmp_path / "file"
    left = path.with_name(f".file.{socket.gethostname()}")
    left.write_text("part")
    files.write_file(path, "text")
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("plant", ["link", "hard link", "pipe", "folder"])
def test_what_somebody_planted_in_the_temporary_name_is_left_alone(tmp_path, plant):
    """A link, pipe or folder with the temporary file's name is neither followed, written nor waited for."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("untouched")
    left = path.with_name(f".file.{socket.gethostname()}")
    {
        "link": lambda: left.symlink_to(victim),
        "hard link": lambda: left.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(left),
        "folder": left.mkdir,
    }[plant]()
    assert files.write_file(path, "text", mode=0o600)
    assert (path.read_text(), victim.read_text(), path.is_symlink()) == ("text", "untouched", False)


def test_two_writers_of_a_file_never_mix(tmp_path):
    """Of several processes that write the same file at once each writes all of it: no reader sees a part."""
    path = tmp_path / "file"
    texts = [letter * 200_000 for letter in "abcd"]
    path.write_text(texts[0])
    script = "import sys; from pathlib import Path; from podwright_bootstrap.host import files\n"
    script += "for _ in range(40): files.write_file(Path(sys.argv[1]), sys.argv[2] * 200_000)"
    writers = [subprocess.Popen([sys.executable, "-c", script, path, letter]) for letter in "abcd"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(path.read_text())
    assert [writer.returncode for writer in writers] == [0] * 4
    assert seen <= set(texts)
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_who_handles_errors_does_not_swallow_a_time_limit():
    """A step that goes on after errors is interrupted all the same."""

    def persist():
        with waits.time_limit(0.3), contextlib.suppress(Exception):
            time.sleep(60)

    with pytest.raises(TimeLimitError):
        persist()


def _child_of(pid):
    """Return the id of a process's first child, once it is there."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    pytest.fail(f"process {pid} has no child")


def _limits(reached):
    """Yield longer and longer limits in seconds until a program has come far enough to write a file."""
    for limit_s in (0.5, 5, 50):
        yield limit_s
        if reached.exists() and reached.read_text():
            return


def _wait_for_end(pid):
    """Return when the process is gone, or a zombie that waits for its parent."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} still runs")
