"""Run functions in worker processes that end at Ctrl-C without a traceback."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker
from typing import Any, TypeVar

T = TypeVar("T")


def run_all(pool: ProcessPoolExecutor, function: Callable[..., T], calls: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return the function's results of all calls, in order; after the first error, calls that wait are not made.

    The terminal sends Ctrl-C to workers too. This process ends them.
    """
    with _held_back():
        futures = [pool.submit(function, *arguments) for arguments in calls]
    try:
        return [future.result() for future in futures]
    except KeyboardInterrupt:
        for process in active_children():
            process.kill()
        raise
    except BaseException:  # After an error of a call, or of this process, further calls are of no use.
        pool.shutdown(cancel_futures=True)
        raise


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold Ctrl-C back within the context, and for ever in processes that start in it."""
    resource_tracker.ensure_running()  # multiprocessing's tracker would unblock the signal when it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
