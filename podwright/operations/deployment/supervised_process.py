"""Start Terraform and the kit so that they end in order, whatever ends this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import IO

from podwright.operations.deployment import supervisor

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """Let SIGTERM and a lost terminal end the block as Ctrl-C does: Python would leave temporary files behind.

    Raises:
        KeyboardInterrupt: one of them came.
    """
    numbers = STOPS if current_thread() is main_thread() else ()  # Python lets no other thread handle signals
    ending = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


class AnnouncedInterrupt(KeyboardInterrupt):
    """An interrupt after which the user was told how to go on."""


@contextmanager
def announcing(command: str) -> Iterator[None]:
    """End the block as ``unwinding`` does, and print which command continues its work.

    Args:
        command: the command without its program.

    Raises:
        AnnouncedInterrupt: a signal stopped the block, in order.
    """
    with unwinding():
        try:
            yield
        except AnnouncedInterrupt:
            raise
        except KeyboardInterrupt as error:
            with suppress(OSError):  # the terminal may be gone
                print(
                    f"podwright: stopped before its end; to go on, run `podwright {command}` again",
                    file=sys.stderr,
                    flush=True,
                )
            raise AnnouncedInterrupt from error


@contextmanager
def supervised(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    stdin: int | IO[str] = subprocess.DEVNULL,
    stdout: int | IO[str] = subprocess.PIPE,
    stderr: int | IO[str] = subprocess.STDOUT,
    keep_open: Sequence[int] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside the block, in a session of its own, and wait for its end.

    Ctrl-C, SIGTERM and a lost terminal are passed on as one Ctrl-C, and waited for. If this process is killed, the
    program is interrupted too, see ``supervisor``.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        environment: its variables. Default: this process's.
        stdin: what it reads.
        stdout: where it writes.
        stderr: where it writes errors; to ``stdout`` if that is a pipe.
        keep_open: descriptors that stay open until it has ended, such as that of a lock.

    Raises:
        KeyboardInterrupt: at the end of the block, if there was one of the signals.
    """
    lifeline, owner_end = os.pipe()
    launcher = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(lifeline)]
    try:
        process = subprocess.Popen(
            [*launcher, *command],
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=[lifeline, *keep_open],
        )
    except BaseException:
        os.close(owner_end)
        raise
    finally:
        os.close(lifeline)
    try:
        with process, _passing_on(process):
            yield process
    finally:
        os.close(owner_end)


@contextmanager
def _passing_on(process: subprocess.Popen[str]) -> Iterator[None]:
    """Pass the first signal on to the supervisor and wait for its end.

    A second interrupt makes Terraform exit at once, without a state of what it has just made. A closed terminal sends
    SIGHUP twice, and a cancelled CI job SIGINT, SIGTERM and SIGKILL within seconds.

    Raises:
        KeyboardInterrupt: at the end of the block, if there was one.
    """
    is_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        message = "still stopping: Terraform would lose resources that its state does not list yet"
        if not is_interrupted:
            is_interrupted = True
            message = "stopping: Terraform finishes its changes and writes its state"
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # the supervisor's, which interrupts Terraform
        with suppress(OSError):  # the terminal may be gone
            print(message, file=sys.stderr, flush=True)

    numbers = STOPS if current_thread() is main_thread() else ()  # Python lets no other thread handle signals
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if is_interrupted:
        raise KeyboardInterrupt
