"""Share a result of the first rank with all others before their process group exists.

PyTorch's store asks nobody for a password, and another program may listen at its address before the job does. So
each value carries a tag that only processes of the run can compute, for its key and this start of the job.

The first rank lists a dataset's files, reads their fingerprint, finds the newest checkpoint and asks the hub for the
tokenizer, so that a start sends these requests once.
"""

from __future__ import annotations

import hmac
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from podwright_training.beats import GENERATION
from podwright_training.data.bad_data import DataError, first_line
from podwright_training.errors import ForgedMessageError, LostRanksError, UserError
from podwright_training.ranks import Ranks
from podwright_training.run_secret import TAG_BYTES, tag

GRACE_S = 30.0  # much more than agents need to hear of a rank that ended
POLL_S = 0.1
ANSWER_S = 5.0  # beyond PyTorch's own limit
ENDED = "ended"  # key: how many ranks besides the first have
LABEL = b"store"
# What differs between starts of one run: torchrun's id, the elastic run's generation, the port.
START = ("TORCHELASTIC_RUN_ID", GENERATION, "MASTER_PORT")


ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


class JobStore:
    """Keys and values of a job, at torchrun's address; connected when it is first used."""

    def __init__(self, ranks: Ranks, secret: bytes, *, timeout_s: float) -> None:
        self.secret = secret
        self._ranks = ranks
        self._timeout = timedelta(seconds=timeout_s)
        self._known: dict[str, Any] = {}

    @cached_property
    def store(self) -> Store:
        """Return PyTorch's store.

        Raises:
            UserError: There is no address, or another program listens at the first rank's port.
            LostRanksError: The first rank is out of reach, or an elastic run has lost its port to another program.
        """
        if self._ranks.world_size == 1:
            return HashStore()  # a single rank needs no rendezvous
        if missing := [name for name in ADDRESS if not os.environ.get(name)]:
            raise UserError(
                f"RANK is set, but {' and '.join(missing)} not: export the name of the first rank's host as "
                "MASTER_ADDR and a free port there as MASTER_PORT, or start with torchrun"
            )
        store = self._connected()
        store.set_timeout(self._timeout)
        return store

    def _connected(self) -> Store:
        """Connect in a thread: PyTorch waits without end for a program at the address that never answers."""
        results: SimpleQueue[Store | Exception] = SimpleQueue()

        def connect() -> None:
            try:
                ranks = self._ranks
                results.put(next(iter(rendezvous("env://", ranks.rank, ranks.world_size, timeout=self._timeout)))[0])
            except Exception as error:  # noqa: BLE001 - raised by the thread that waits
                results.put(error)

        Thread(target=connect, daemon=True, name="rendezvous").start()
        try:
            result = results.get(timeout=self._timeout.total_seconds() + ANSWER_S)
        except Empty:
            raise LostRanksError(
                f"the program that listens at {_address()} is not the first rank of this run; see that rank's error"
            ) from None
        if isinstance(result, dist.DistError | ValueError):
            raise self._unreachable(result) from result
        if isinstance(result, Exception):
            raise result
        return result

    def _unreachable(self, error: Exception) -> Exception:
        address = _address()
        if isinstance(error, ValueError):
            return UserError(f"MASTER_ADDR:MASTER_PORT is {address}, need a host and a port ({first_line(error)})")
        if not ("EADDRINUSE" in str(error) and self._ranks.rank == 0):
            return LostRanksError(f"cannot reach the first rank at {address} ({first_line(error)}); see its error")
        if GENERATION in os.environ:
            return LostRanksError(f"another program listens at {address}, which was free before")
        return UserError(
            f"another program listens at {address} (MASTER_ADDR:MASTER_PORT), perhaps another job on this host: export "
            "another MASTER_PORT, such as $((20000 + SLURM_JOB_ID % 20000)) in a job of Slurm"
        )

    def of_first_rank(self, name: str, action: Callable[[], Any]) -> Any:
        """Run ``action`` on the first rank, once; return its result, JSON values, on all ranks.

        Raises:
            DataError: That of the action, the same on all ranks.
            LostRanksError: The first rank is gone. It is no error of the user: an elastic run starts again.
            ForgedMessageError: The value is not the first rank's.
        """
        if name not in self._known:
            self._known[name] = self._act(name, action) if self._ranks.rank == 0 else self._receive(name)
        return self._known[name]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the other ranks end a block, too, before a user's error ends the first rank, which hosts their store."""
        try:
            yield
        except UserError:
            ended_ranks = self._count_end()
            began = time.monotonic()
            while (
                self._ranks.rank == 0
                and ended_ranks < self._ranks.world_size - 1
                and time.monotonic() - began < GRACE_S
            ):
                time.sleep(POLL_S)
                ended_ranks = self.store.add(ENDED, 0)
            raise
        self._count_end()

    def _count_end(self) -> int:
        """Count that this rank has ended its block, unless it is the first; return how many have."""
        try:
            return self.store.add(ENDED, int(self._ranks.rank != 0))
        except RuntimeError:
            return self._ranks.world_size  # the first is gone: nobody counts

    def _receive(self, name: str) -> Any:
        store = self.store  # its error says more than that the first rank is gone
        try:
            value = store.get(name)
        except RuntimeError as error:
            time.sleep(GRACE_S)  # if the first ended with an error of the user, that is why its agent ends this one
            raise LostRanksError(f"the first rank is gone before it shared {name}; see its error") from error
        received, content = value[:TAG_BYTES], value[TAG_BYTES:]
        if not hmac.compare_digest(received, self._tag(name, content)):
            raise ForgedMessageError(
                f"{name} in the store at {_address()} is not from the first rank of this run: another program listens "
                "there, or has written to it; start the job again"
            )
        outcome = json.loads(zlib.decompress(content))
        if "problem" in outcome:
            raise DataError(outcome["problem"])
        return outcome["result"]

    def _act(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            result = action()
        except UserError as error:
            self._publish(name, {"problem": str(error)})
            raise
        self._publish(name, {"result": result})
        return result

    def _publish(self, name: str, outcome: dict[str, Any]) -> None:
        """Set a key, compressed: one store sends a list of many thousand files to every rank."""
        content = zlib.compress(json.dumps(outcome).encode(), 1)
        self.store.set(name, self._tag(name, content) + content)  # type: ignore[arg-type]  # bytes will do

    def _tag(self, name: str, content: bytes) -> bytes:
        start = "\n".join(os.environ.get(part, "") for part in START)
        return tag(self.secret, LABEL, start.encode(), name.encode(), content)


def _address() -> str:
    """Return where the first rank of the job should listen."""
    return ":".join(os.environ.get(name, "") for name in ADDRESS)
