"""Explain a rank's end or stall: stacks of a stall, a snapshot of exhausted memory, a line for a lost rank."""

from __future__ import annotations

import faulthandler
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from podwright_training.data.bad_data import first_line
from podwright_training.errors import DeviceMemoryError, report
from podwright_training.lost_ranks import lost_ranks_error
from podwright_training.ranks import Ranks

if TYPE_CHECKING:
    from typing_extensions import Self  # Python has it in typing from 3.11 on.

logger = logging.getLogger(__name__)

MOST_ALLOCATIONS = 100_000  # in a snapshot


class StallWatch:
    """Dump the stacks of this rank's threads to a file when it makes no progress for a time, or on SIGUSR2.

    Training continues. Every rank has its own file, so that the rank whose stack differs from all others can be found.

    Args:
        path: File of the stacks, written only then.
        timeout_s: Longest time until the first call of ``alive``.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("a")
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        self.alive(self._timeout_s)
        faulthandler.register(signal.SIGUSR2, file=self._file)
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR2)
        self._file.close()
        if self._path.stat().st_size == 0:
            self._path.unlink()

    def alive(self, timeout_s: float) -> None:
        """Begin to wait anew, for at most so long until the next call."""
        faulthandler.dump_traceback_later(timeout_s, file=self._file)


@contextmanager
def memory_snapshot(path: Path, ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Turn an out-of-memory error into one with a remedy; on a GPU, write a snapshot of its allocator.

    Report it at once: cleanup after this block may wait for other ranks, or end the process.

    Raises:
        DeviceMemoryError: The device is out of memory.
    """
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS, stacks="python")  # noqa: SLF001 - documented, no public name
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        snapshot = f"; snapshot for https://docs.pytorch.org/memory_viz: {path}" if cuda and _dump(path) else ""
        exhausted = DeviceMemoryError(
            f"rank {ranks.rank} on {socket.gethostname()} is out of memory: {reason} Lower train_batch_size, keep less "
            f"(activation_checkpointing), or use more ranks; podwright plan --run finds a fitting run{snapshot}"
        )
        report(exhausted)
        raise exhausted from error


@contextmanager
def lost_ranks(silent: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn the error of a rank that waited for another one, which is gone or late, into one line.

    Args:
        silent: Returns the name of a rank that stands still, empty if none does.

    Raises:
        LostRanksError: With the address of the other, if that is known, and where this rank waited.
    """
    try:
        yield
    except RuntimeError as error:
        if (lost := lost_ranks_error(error, silent())) is None:
            raise
        raise lost from error


def _dump(path: Path) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]  # noqa: SLF001 - no public name
    except Exception as error:  # noqa: BLE001 - without memory anything may fail, and that is what the user must see
        logger.warning("cannot write %s: %s", path, first_line(error))
        return False
    return True
