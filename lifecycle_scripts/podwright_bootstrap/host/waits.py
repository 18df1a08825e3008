"""Retry, wait, and limit time. Every wait is bounded, and pauses are jittered, because hosts start at the same time."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager
from typing import Callable, Iterator, Tuple, Type, TypeVar

from podwright_bootstrap.host import log
from podwright_bootstrap.host.errors import BootstrapError, SlowCommandError, TimeLimitError

# How long to wait for others, as a factor on every such limit and pause: a rehearsal is less patient than a cloud.
PATIENCE = float(os.environ.get("PODWRIGHT_PATIENCE", "1"))
# The same for whole steps: a test of a wait is impatient, and its step may take as long as a busy machine makes it.
STEP_PATIENCE = float(os.environ.get("PODWRIGHT_STEP_PATIENCE", PATIENCE))
LOG_EVERY_S = 30

T = TypeVar("T")


def retry(action: Callable[[], T], *, attempts: int, pause_s: float, errors: Tuple[Type[Exception], ...]) -> T:
    """Call ``action`` until it ends without one of ``errors``, at most ``attempts`` times; the pauses are jittered."""
    for attempt in range(1, attempts):
        try:
            return action()
        except errors as error:
            log.say(f"attempt {attempt} of {attempts}: {error}")
            pause(pause_s)
    return action()


def wait_until(
    condition: Callable[[], bool], *, event: str, limit_s: float, every_s: float = 2, hint: str = ""
) -> None:
    """Wait until ``condition()`` holds, logging the wait every now and then.

    A program that the condition runs may be slow, as on a host that is busy: it is asked again.

    Raises:
        BootstrapError: it did not within ``limit_s`` (times ``PATIENCE``).
    """
    limit_s *= PATIENCE
    started, logged = time.monotonic(), time.monotonic()
    while not _holds(condition):
        waited_s = time.monotonic() - started
        if waited_s >= limit_s:
            raise BootstrapError(f"waited {limit_s:.0f} s for {event}", hint=hint)
        if time.monotonic() - logged >= LOG_EVERY_S:
            logged = time.monotonic()
            log.say(f"waiting for {event}: {waited_s:.0f} s of at most {limit_s:.0f} s")
        pause(every_s)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except SlowCommandError as error:
        log.say(str(error))
        return False


def spread(over_s: float) -> None:
    """Sleep for any part of ``over_s``: hosts that started at once go on one after another."""
    time.sleep(random.uniform(0, over_s) * min(PATIENCE, 1))  # noqa: S311 (jitter is no secret)


def pause(seconds: float) -> None:
    """Sleep for about ``seconds``: hosts that started at once must not ask at once."""
    time.sleep(seconds * random.uniform(0.5, 1.5) * min(PATIENCE, 1))  # noqa: S311 (jitter is no secret)


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Interrupt the block, whatever it is doing, when it has run for ``limit_s``."""

    def ring(_signal: int, _frame: object) -> None:
        raise TimeLimitError(f"not done within its {limit_s:.0f} s")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
