"""Read keys while a screen is drawn: keys are not echoed, and the terminal is restored in the end."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIT = {"q", "Q", "\x04"}  # Ctrl-D


@contextmanager
def quit_key() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits so many seconds, and returns True as soon as the user presses q.

    Ctrl-C stays an interrupt. Without a terminal to type on, the function only waits.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield _pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    terminal = sys.stdin.fileno()
    while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        keys = os.read(terminal, 1024).decode(errors="replace")  # sys.stdin would keep keys in its buffer, unseen
        if not keys or QUIT & set(keys):  # a terminal that is gone reads as empty
            return True
    return False
