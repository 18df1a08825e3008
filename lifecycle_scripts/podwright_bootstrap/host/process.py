"""Run programs on a host. Every run has a time limit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, List, Mapping

from podwright_bootstrap.host import log
from podwright_bootstrap.host.errors import CommandError, SlowCommandError

KILL_LIMIT_S = 10  # A killed program that waits for a device or a server may not end.
# Of a program's output, what belongs into one line about its failure; pip names a version it lacks as "(constraint)".
FAULT = re.compile(r"error|fatal|cannot|denied|not found|\(constraint\)", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """A program's exit code, its stdout, which is its answer, and its stderr, where it may also warn."""

    exit_code: int
    output: str
    errors: str = ""

    @property
    def lines(self) -> List[str]:
        """All that it wrote."""
        return [*self.output.splitlines(), *self.errors.splitlines()]

    @property
    def summary(self) -> str:
        """Return the last lines that name a fault, else the last line."""
        lines = [line.strip() for line in self.lines if line.strip()]
        faults = [line for line in lines if FAULT.search(line)][-3:]
        return " / ".join(faults or lines[-1:] or ["it printed nothing"])


def run(
    *command: str | Path,
    timeout_s: float,
    check: bool = True,
    quiet: bool = False,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a program to its end and write its output to the log, unless ``quiet``.

    What it reads from ``stdin``, and the ``variables`` that are added to its environment, are never written there.

    Raises:
        CommandError: it does not exist, ran longer than ``timeout_s``, or (with ``check``) did not exit with 0.
    """
    words = [str(word) for word in command]
    if not quiet:
        log.say(f"$ {' '.join(words)}")
    with _in_memory() as output, _in_memory() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **(variables or {})},
            )
        except FileNotFoundError as error:
            raise CommandError(f"{words[0]}: no such program on this host") from error
        try:
            process.communicate(stdin.encode(), timeout_s)
        except subprocess.TimeoutExpired as error:
            more = "" if _end(process) else ", nor when it was killed: it waits for a device or a server"
            raise SlowCommandError(f"{_short(words)} did not end within {timeout_s:.0f} s{more}") from error
        except BaseException:  # the step's time is up, or the boot's
            _end(process)
            raise
        outcome = Outcome(process.returncode, _text(output), _text(errors))
    for line in [] if quiet else outcome.lines:
        log.say(f"  | {line}")
    if check and outcome.exit_code:
        raise CommandError(f"{_short(words)} failed (exit {outcome.exit_code}): {outcome.summary}")
    return outcome


def _in_memory() -> IO[bytes]:
    """Open a file, not a pipe: a daemon that keeps it open does not keep us waiting; and users may have filled /tmp."""
    return os.fdopen(os.memfd_create("output"), "w+b")


def finds(program: str) -> bool:
    """Return whether this host has the program."""
    return shutil.which(program) is not None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _short(words: list[str]) -> str:
    """The command as it is named in an error; the log has all of it."""
    text = " ".join([Path(words[0]).name, *words[1:]])
    return textwrap.shorten(text, 100, placeholder=" …")


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Kill a program that still runs, with its children; return whether it ends."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_LIMIT_S)
    return process.poll() is not None
