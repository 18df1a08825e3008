"""Make sequences ahead of the trainer in worker processes; the trainer reads them from pipes.

The pipe of a worker is its prefetch buffer.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from podwright_training.data.bad_data import DataError
from podwright_training.data.corpus import DataPosition
from podwright_training.data.packing import Packed, Recipe
from podwright_training.errors import UserError

logger = logging.getLogger(__name__)

PIPE_BYTES = 1 << 20  # how far a worker may be ahead: 32 sequences of 8,192 tokens; what Linux gives any user
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Slurm sends them to every process of a job's step


class Worker:
    """Process that packs some of the streams. It ends with ``close``, or when its pipe has no reader."""

    def __init__(
        self, recipe: Recipe, positions: Mapping[int, Sequence[DataPosition]], *, first_sequence: int, step: int
    ) -> None:
        # spawn: a fork of a process with threads (CUDA's, gloo's, the tokenizer's) may hang
        context = multiprocessing.get_context("spawn")
        self._pipe, sender = context.Pipe(duplex=False)
        _widen(self._pipe)
        self._process = context.Process(
            target=_work, args=(sender, recipe, positions, first_sequence, step), daemon=True
        )
        with _blocked([signal.SIGUSR1]):
            resource_tracker.ensure_running()  # Its start unblocks the other two signals: it must not start below.
        with _blocked(IGNORED_SIGNALS):  # the process inherits that until it ignores them: it must not die as it starts
            self._process.start()
        sender.close()
        atexit.register(self._process.kill)  # before multiprocessing's own handler, which would wait for it

    def __iter__(self) -> Iterator[Packed]:
        """Yield the sequences; re-raise the worker's errors, and raise ``DataError`` if it died."""
        while True:
            try:
                item = self._pipe.recv()
            except (EOFError, OSError):  # the latter within a message, which may fill the pipe
                raise DataError(_death(self._process)) from None
            if isinstance(item, UserError):
                raise item
            yield item

    def close(self) -> None:
        """Stop the process."""
        atexit.unregister(self._process.kill)
        self._process.kill()
        self._process.join()
        self._pipe.close()


@contextmanager
def _blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Let these signals wait for the end of this block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _widen(pipe: Connection) -> None:
    try:
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except PermissionError:  # this user has too many wide pipes: a narrow one works, with less read ahead
        logger.info("a data worker's pipe keeps the system's default size")


def _death(process: SpawnProcess) -> str:
    process.join()
    status = process.exitcode or 0
    if status == -signal.SIGKILL:
        return f"data worker {process.pid} was killed; is the host out of memory? Try fewer data_workers"
    return f"data worker {process.pid} died with exit status {status}; see its output above"


def _work(
    pipe: Connection, recipe: Recipe, positions: Mapping[int, Sequence[DataPosition]], first_sequence: int, step: int
) -> None:
    """Run the worker: one core, no torch."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        for packed in recipe.pack(positions, first_sequence=first_sequence, step=step):
            pipe.send(packed)
    except UserError as error:
        with suppress(BrokenPipeError):
            pipe.send(error)
    except BrokenPipeError:  # the trainer is gone
        return
