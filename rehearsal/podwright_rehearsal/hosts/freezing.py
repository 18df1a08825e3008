"""Stop and continue every process of a host."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from podwright_rehearsal.hosts.waiting import wait_for

_STOP_TIMEOUT_S = 60.0


def freeze(init: int) -> None:
    """Stop every process of the host with this PID 1; its kernel still accepts connections.

    Raises:
        HostError: a process does not stop.
    """
    wait_for(
        lambda: not _send(signal.SIGSTOP, _running(init)),
        timeout_s=_STOP_TIMEOUT_S,
        description=lambda: f"the processes {list(_running(init))} of the host to stop",
    )


def thaw(init: int) -> None:
    """Continue every process of the host."""
    _send(signal.SIGCONT, _members(init))


def namespace_of(init: int) -> Path:
    """Return what names the pid namespace of a host's init."""
    return Path(f"/proc/{init}/ns/pid").readlink()


def described(namespace: Path) -> list[str]:
    """Return id, name and state of each process in a pid namespace, and where in the kernel it waits."""
    descriptions = []
    for pid in _members_of(namespace):
        with contextlib.suppress(OSError):  # it has just ended
            name, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rsplit(")", 1)
            wait = Path(f"/proc/{pid}/wchan").read_text()
            descriptions.append(f"{pid} {name} {state.split()[0]} {wait}")
    return descriptions


def _members(init: int) -> Iterator[int]:
    """Yield this machine's ids of the processes in the pid namespace of a host's init."""
    yield from _members_of(namespace_of(init))


def _members_of(namespace: Path) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (folder / "ns/pid").readlink() == namespace:
                yield int(folder.name)


def _running(init: int) -> Iterator[int]:
    """Yield the processes that are neither stopped nor dead."""
    for pid in _members(init):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "TZX":
                yield pid


def _send(number: signal.Signals, pids: Iterable[int]) -> int:
    """Send a signal to each process; return how many there were."""
    sent = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent
