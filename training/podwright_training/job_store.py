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
from typing import Any

from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from podwright_training.beats import GENERATION
from podwright_training.data.bad_data import DataError
from podwright_training.errors import ForgedMessageError, LostRanksError, UserError
from podwright_training.ranks import Ranks
from podwright_training.run_secret import TAG_BYTES, tag

GRACE_S = 30.0  # much more than agents need to hear of a rank that ended
POLL_S = 0.1
ENDED = "ended"  # key: how many ranks besides the first have
LABEL = b"store"
# What differs between starts of one run: torchrun's id, the elastic run's generation, the port.
START = ("TORCHELASTIC_RUN_ID", GENERATION, "MASTER_PORT")


class JobStore:
    """Keys and values of a job, at torchrun's address; connected when it is first used."""

    def __init__(self, ranks: Ranks, secret: bytes, *, timeout_s: float) -> None:
        self.secret = secret
        self._ranks = ranks
        self._timeout = timedelta(seconds=timeout_s)
        self._known: dict[str, Any] = {}

    @cached_property
    def store(self) -> Store:
        """Return PyTorch's store."""
        if "RANK" not in os.environ:
            return HashStore()  # a single rank needs no rendezvous
        rendezvous_results = rendezvous("env://", self._ranks.rank, self._ranks.world_size, timeout=self._timeout)
        store: Store = next(iter(rendezvous_results))[0]
        store.set_timeout(self._timeout)
        return store

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
        try:
            value = self.store.get(name)
        except RuntimeError as error:
            time.sleep(GRACE_S)  # if the first ended with an error of the user, that is why its agent ends this one
            raise LostRanksError(f"the first rank is gone before it shared {name}; see its error") from error
        received, content = value[:TAG_BYTES], value[TAG_BYTES:]
        if not hmac.compare_digest(received, self._tag(name, content)):
            address = ":".join(os.environ.get(part, "") for part in ("MASTER_ADDR", "MASTER_PORT"))
            raise ForgedMessageError(
                f"{name} in the store at {address} is not from the first rank of this run: another program listens "
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
