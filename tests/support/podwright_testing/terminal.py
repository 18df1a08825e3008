"""A program on a terminal of a given size, as its user sees and types it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>()][0-9A-B]?|\x1b\].*?\x1b\\")  # the last are links


class Terminal:
    """A running program with a pseudo-terminal of its own; its session ends with the context.

    Args:
        words: the program and its arguments.
        columns: width of the terminal.
        rows: its height.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        given = {**(os.environ if environment is None else environment), "TERM": "xterm-256color"}
        if environment is None:
            given.pop("COLUMNS", None)  # of whoever runs the tests
        self._theirs = theirs  # kept open, so that its settings can be read after the program
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=given, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 — Ctrl-C needs a controlling terminal
        )  # fmt: skip
        self.output = ""

    def __enter__(self) -> Terminal:  # noqa: PYI034 — Self is newer than Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for end in (self._ours, self._theirs):
            os.close(end)

    @property
    def text(self) -> str:
        """Everything that was printed, without escape sequences."""
        return ESCAPES.sub("", self.output).replace("\r\n", "\n")

    @property
    def settings_are_restored(self) -> bool:
        """Return whether the terminal echoes and edits lines as before the program."""
        return termios.tcgetattr(self._theirs) == self.before

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def wait_for(self, words: str, *, times: int = 1, timeout_s: float = 600) -> None:
        """Read until the output has the words so many times."""
        self._read(lambda: self.text.count(words) >= times, f"{words!r} never came", timeout_s)

    def wait(self, *, timeout_s: float = 600) -> int:
        """Read until the program ends; return its exit status."""
        self._read(lambda: self.process.poll() is not None, "it did not end", timeout_s)
        self._drain(0.1)
        return self.process.returncode

    def _read(self, reached: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached():
            assert time.monotonic() < deadline, f"{what}:\n{self.text}"
            self._drain(0.1)

    def _drain(self, seconds: float) -> None:
        while select.select([self._ours], [], [], seconds)[0]:
            self.output += os.read(self._ours, 65536).decode(errors="replace")
            seconds = 0
