"""Save in a thread, over a process group that it shares with the same threads of the other ranks."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent import futures
from typing import Any

from podwright_common.exit_status import FAILED
from podwright_training.errors import DeviceMemoryError, LostRanksError, UserError, report
from podwright_training.lost_ranks import lost_ranks_error

LOOK_S = 1.0  # between two looks for ranks that stand still


class SavingThread:
    """Run saves in the background, one after the other.

    Args:
        name: Name of the thread; the error that gives a save up has it.
        patience_s: How long a rank may stand still, or any take after an error.
        silent: Returns the name of a rank that stands still, empty if none does.
    """

    def __init__(self, name: str, *, patience_s: float, silent: Callable[[], str] = lambda: "") -> None:
        self._name, self._patience_s, self._silent = name, patience_s, silent
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
        """Wait until no save is in progress; raise the save's error.

        Raises:
            LostRanksError: A rank has stood still for ``patience_s``.
        """
        if self._in_progress:
            if silent := self._await_save(None):
                raise LostRanksError(f"the {self._name} in progress is abandoned: {silent} stands still")
            self._in_progress.result()
            self._in_progress = None

    def end(self, error: BaseException | None) -> None:
        """Finish the save in progress, and end the thread.

        After an error another rank may hang. A save waits hours for it, and nothing ends a thread that waits in a
        collective. After ``patience_s`` this prints the error and ends the process, as NCCL's watchdog does. After an
        error of the user, such as a bad loss, all ranks can go on: it waits for the save. A rank without memory cannot.
        """
        all_are_well = isinstance(error, UserError) and not isinstance(error, DeviceMemoryError)
        limit_s = self._patience_s if error and not all_are_well else None
        silent = self._silent() if isinstance(error, LostRanksError) else self._await_save(limit_s)
        if self._in_progress and not self._in_progress.done():
            self._abandon(error, silent)
        self._executor.shutdown()

    def _await_save(self, limit_s: float | None) -> str:
        """Wait for the save at most so long; return the name of a rank that stands still for ``patience_s``."""
        began = time.monotonic()
        silent_since = None
        while self._in_progress and futures.wait([self._in_progress], timeout=LOOK_S).not_done:
            now, silent = time.monotonic(), self._silent()
            silent_since = (now if silent_since is None else silent_since) if silent else None
            if silent_since is not None and now - silent_since > self._patience_s:
                return silent
            if limit_s is not None and now - began > limit_s:
                return silent
        return ""

    def _abandon(self, error: BaseException | None, silent: str) -> None:
        """End the process with one line, and with the stack of an error that is not another rank's."""
        cause = f"{silent} stands still" if silent else f"another rank has made no progress for {self._patience_s:g} s"
        words = f"the {self._name} in progress is abandoned: {cause}"
        if isinstance(error, LostRanksError):
            words = str(error)
        elif lost := lost_ranks_error(error, silent):
            words = f"{words}: {lost}"
        elif not isinstance(error, DeviceMemoryError):
            traceback.print_exception(error)
        report(LostRanksError(words))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(FAILED)
