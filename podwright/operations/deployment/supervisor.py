"""Run a program to its end, also if the process that started this one is killed: ``supervisor.py FD PROGRAM …``.

FD is the reading end of a pipe whose other end the owner keeps open: the kernel closes it, however the owner ends.
Then, and at the owner's signal, Terraform is interrupted, as by Ctrl-C, and the program's output is read to the end.
Terraform dies before it has written its state and given its lock back if it finds no reader, at a second interrupt, and
below a kit that ends first, because the kit's terminal goes. So each Terraform is interrupted once, and the kit not.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

STDOUT = 1
CHUNK_BYTES = 1 << 16
NAME_LENGTH = 15  # The kernel cuts the names of processes.
POLL_S = 0.2


def main() -> int:
    """Run the program; return its exit status."""
    lifeline, command, stopping = int(sys.argv[1]), sys.argv[2:], Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    has_reader = stat.S_ISFIFO(os.fstat(STDOUT).st_mode)
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if has_reader else {}
    with subprocess.Popen(command, **pipe) as process:  # type: ignore[call-overload]  # of either form
        Thread(target=watch_owner, args=(lifeline, stopping), daemon=True).start()
        Thread(target=interrupt, args=(process, stopping), daemon=True).start()
        if process.stdout:
            copy(process.stdout.fileno())
        status: int = process.wait()
    return status if status >= 0 else 128 - status


def watch_owner(lifeline: int, stopping: Event) -> None:
    """Say that the owner has ended."""
    while os.read(lifeline, 1):
        pass
    stopping.set()


def interrupt(process: subprocess.Popen[bytes], stopping: Event) -> None:
    """Interrupt every Terraform once, also those that the kit still starts; without one, the program itself."""
    while not stopping.wait(POLL_S):  # a signal handler cannot wake a thread that waits without an end
        pass
    interrupted: set[int] = set()
    while process.returncode is None:
        if not interrupted and not terraforms():
            os.killpg(os.getpgrp(), signal.SIGINT)
            interrupted.add(process.pid)
        for pid in set(terraforms()) - interrupted:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            interrupted.add(pid)
        stopping.clear()
        stopping.wait(POLL_S)


def terraforms() -> list[int]:
    """Return the ids of the Terraforms below this process."""
    name = Path(os.environ.get("TERRAFORM_BINARY_NAME", "terraform")).name[:NAME_LENGTH]
    parents, names = {}, {}
    for pid, parent, word in processes():
        parents[pid], names[pid] = parent, Path(word).name
    return [pid for pid in parents if names[pid] == name and is_below(pid, parents)]


def is_below(pid: int, parents: dict[int, int]) -> bool:
    """Return whether a process descends from this one."""
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def processes() -> list[tuple[int, int, str]]:
    """Return id, parent and name of each process: of Linux's ``/proc``, elsewhere of ``ps``."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=False)
        fields = (line.split(None, 2) for line in lines.stdout.splitlines())
        return [(int(pid), int(parent), name[:NAME_LENGTH]) for pid, parent, name in fields]
    listed = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            head, _, tail = file.read_text(errors="replace").rpartition(")")
            listed.append((int(file.parent.name), int(tail.split()[1]), head.partition("(")[2]))
    return listed


def copy(source: int) -> None:
    """Copy the program's output to its end, also if nobody reads it any more."""
    while chunk := os.read(source, CHUNK_BYTES):
        try:
            while chunk:
                chunk = chunk[os.write(STDOUT, chunk) :]
        except OSError:
            continue


if __name__ == "__main__":
    sys.exit(main())
