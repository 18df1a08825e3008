"""Find the rank that stands still, so that those that wait for it can name it.

Each rank counts upwards in the job's store while its process runs, and looks at the count of the next rank. A process
that was stopped, or whose host hangs, does not count; the rank before it writes its name into the store, where all
ranks read it. That is three small messages per rank and ``TICK_S``, in a thread, over a connection of its own.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from podwright_training.job_store import JobStore
from podwright_training.ranks import Hosts

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from typing_extensions import Self  # Python has it in typing from 3.11 on.

TICK_S = 5.0
SILENT_S = 15.0  # A rank that has not counted for so long stands still.
SILENT = "silent"  # key: name of the rank
ENDED = -(2**40)  # added to the count of a rank that has ended: it is not silent


class RankWatch:
    """Watch the next rank from a thread; without other ranks it does nothing.

    Args:
        store: The job's.
        hosts: Of all ranks.
    """

    def __init__(self, store: JobStore | None, hosts: Hosts) -> None:
        self._hosts = hosts
        self._store = _connection(store) if store and len(hosts.names) > 1 else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank-watch", daemon=True)
        self._asked_s: float | None = None  # since when the store has not answered
        self._silent = ""
        self._has_published = False

    def __enter__(self) -> Self:
        if self._store:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(TICK_S)
            if self._thread.is_alive():
                return  # the store does not answer
            with suppress(RuntimeError):  # the store has ended
                self._tick(self._hosts.rank)

    @property
    def silent(self) -> str:
        """Return the name of a rank that stands still, empty if none is known: ``rank 3 on node-2``."""
        asked_s = self._asked_s
        if not self._silent and asked_s is not None and time.monotonic() - asked_s > SILENT_S:
            return f"{self._name(0)}, or the launcher there, which has the job's store,"
        return self._silent

    def _watch(self) -> None:
        following = (self._hosts.rank + 1) % len(self._hosts.names)
        count, changed_s, looked_s = 0, time.monotonic(), time.monotonic()
        while True:  # count at once: a rank may be stopped in its first seconds
            self._asked_s = now = time.monotonic()
            try:
                previous_count, count = count, self._tick(following)
                if count != previous_count or now - looked_s > SILENT_S:  # or this process stood still itself
                    changed_s = now
                stands_still = count > 0 and now - changed_s > SILENT_S  # a rank counts only while it watches
                self._publish(self._name(following), stands_still=stands_still)
            except RuntimeError:  # the store has ended: so has the job
                break
            self._asked_s, looked_s = None, now
            if self._ended.wait(TICK_S):
                break
        self._asked_s = None

    def _tick(self, following: int) -> int:
        """Count, and return the count of the next rank."""
        if self._store is None:
            return 0
        self._store.add(f"count-{self._hosts.rank}", ENDED if self._ended.is_set() else 1)
        return self._store.add(f"count-{following}", 0)

    def _publish(self, name: str, *, stands_still: bool) -> None:
        """Let all ranks know whether the next rank stands still, and read what other ranks published."""
        if self._store is None:
            return
        if stands_still != self._has_published:
            if stands_still:
                self._store.set(SILENT, name)
            else:
                self._store.delete_key(SILENT)
            self._has_published = stands_still
        silent = self._store.get(SILENT).decode(errors="replace") if self._store.check([SILENT]) else ""
        self._silent = name if stands_still else silent

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts.names[rank]}"


def _connection(store: JobStore) -> Store | None:
    """Return a connection of its own to the store, so that no other use of it waits."""
    from torch._C._distributed_c10d import PrefixStore

    try:
        connection: Store = store.store.clone()  # type: ignore[attr-defined]  # of TCPStore
        connection.set_timeout(timedelta(seconds=SILENT_S))
    except (AttributeError, RuntimeError):  # a store that has no further connections
        return None
    return PrefixStore(f"watch-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", connection)
