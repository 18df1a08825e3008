"""Save in a thread, over a process group that it shares with the same threads of the other ranks."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from concurrent import futures
from typing import Any

from podwright_training.errors import DeviceMemoryError, UserError

logger = logging.getLogger(__name__)

FAILED_STATUS = 1


class SavingThread:
    """Run saves in the background, one after the other.

    Args:
        name: Name of the thread; the error that gives a save up has it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._in_progress: futures.Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a save is in progress."""
        return self._in_progress is not None and not self._in_progress.done()

    def start(self, save: Callable[..., None], *args: Any) -> None:
        """Begin a save."""
        self._in_progress = self._executor.submit(save, *args)

    def wait(self) -> None:
        """Wait until no save is in progress; raise the save's error."""
        if self._in_progress:
            self._in_progress.result()
            self._in_progress = None

    def end(self, error: BaseException | None, *, patience_s: float) -> None:
        """Finish the save in progress, and end the thread.

        After an error another rank may hang. A save waits hours for it, and nothing ends a thread that waits in a
        collective. After ``patience_s`` this prints the error and ends the process, as NCCL's watchdog does. After an
        error of the user, such as a bad loss, all ranks can go on: it waits for the save. A rank without memory cannot.
        """
        all_are_well = isinstance(error, UserError) and not isinstance(error, DeviceMemoryError)
        patience = patience_s if error and not all_are_well else None
        if self._in_progress and futures.wait([self._in_progress], timeout=patience).not_done:
            traceback.print_exception(error)
            logger.error(
                "the %s in progress is abandoned: another rank has made no progress for %g s", self._name, patience_s
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(FAILED_STATUS)
        self._executor.shutdown()
