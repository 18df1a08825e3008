"""Run a program to its end, also if the process that started this one is killed: ``supervisor.py FD PROGRAM …``.

FD is the reading end of a pipe whose other end the owner keeps open: the kernel closes it, however the owner ends. Then
the program is interrupted, as by Ctrl-C, unless the owner did that before, and its output is read to the end. Terraform
exits at once at a second interrupt, and dies where it finds no reader, before it has written its state and given its
lock back.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from threading import Event, Thread

STDOUT = 1
CHUNK_BYTES = 1 << 16


def main() -> int:
    """Run the program; return its exit status."""
    lifeline, command, interrupted = int(sys.argv[1]), sys.argv[2:], Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: interrupted.set())  # sent to the whole group: the program acts on it
    has_reader = stat.S_ISFIFO(os.fstat(STDOUT).st_mode)
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if has_reader else {}
    with subprocess.Popen(command, **pipe) as process:  # type: ignore[call-overload]  # of either form
        Thread(target=interrupt_without_owner, args=(lifeline, interrupted), daemon=True).start()
        if process.stdout:
            copy(process.stdout.fileno())
        status: int = process.wait()
    return status if status >= 0 else 128 - status


def interrupt_without_owner(lifeline: int, interrupted: Event) -> None:
    """Interrupt the program when the owner has ended, unless it was interrupted before."""
    while os.read(lifeline, 1):
        pass
    if not interrupted.is_set():
        os.killpg(os.getpgrp(), signal.SIGINT)


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
