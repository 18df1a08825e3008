"""Run programs on this machine: keep their output, make sure that they end."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

MARKER = "PODWRIGHT_REHEARSAL"  # in the environment of every process of a rehearsal: its directory
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # cdktf asks Terraform for them even where there is no terminal
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LIMIT_S = 1800  # One program's limit; a deployment takes five minutes on a busy machine.


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent died, so that ``end_descendants`` finds them: see prctl(2)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_logged(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] = lambda _: None,
    limit_s: float = LIMIT_S,
) -> int:
    """Run a program with its output appended to ``log`` and passed on line by line; return its exit code.

    It runs in a session of its own, so that Ctrl-C reaches the rehearsal alone, which then ends it. After ``limit_s``
    it is killed, and the log's last line says so.
    """
    with (
        log.open("a") as file,
        subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        alarm = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        alarm.start()
        try:
            for line in process.stdout or ():
                plain = COLOURS.sub("", line)
                file.write(plain)
                file.flush()
                if plain.strip():
                    on_line(plain.strip())
            if alarm.finished.is_set():
                file.write(f"killed after {limit_s:g} s\n")
            return process.wait()
        except BaseException:  # Ctrl-C too: no process stays
            end([process.pid, *descendants(process.pid)])
            raise
        finally:
            alarm.cancel()


def end_descendants() -> list[int]:
    """End every process this one started, directly or not; return the pids that were still there."""
    pids = [pid for pid in descendants(os.getpid()) if _alive(pid)]
    end(pids)
    return pids


def end_all(is_over: Callable[[], bool]) -> None:
    """End the processes that this one started, also those that are started until ``is_over``."""
    while True:
        nothing_follows = is_over()
        if not end_descendants() and nothing_follows:
            return
        time.sleep(0.1)


def marked(directory: Path) -> list[int]:
    """Return the processes with ``directory`` as marker in their environment, without this one and its parents."""
    mark = f"{MARKER}={directory}".encode()
    own_pids = set(_ancestors(os.getpid())) | {os.getpid()}
    return [pid for pid in _pids() if pid not in own_pids and mark in _read(pid, "environ").split(b"\0")]


def end(pids: Sequence[int], *, patience_s: float = 5.0) -> None:
    """Send SIGTERM, wait, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            _signal(pid, number)
        deadline = time.monotonic() + patience_s
        while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
            _reap()
            time.sleep(0.02)


def descendants(root: int) -> Iterator[int]:
    """Yield the pids below ``root`` in the process tree."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        children.setdefault(_parent(pid), []).append(pid)
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _ancestors(pid: int) -> Iterator[int]:
    while (pid := _parent(pid)) > 0:
        yield pid


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != b"Z"


def _stat(pid: int) -> list[bytes]:
    """Return state, parent and so on of /proc/PID/stat; the name before them may hold spaces and brackets."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
