"""Faults of running hosts: each lasts as long as its context.

`NamespacedCluster.kill` ends a host, `NamespacedCluster.reboot` reboots it. The faults here use the kernel (signals,
mount flags, a file system's size, fanotify, a token bucket) or delay a server. Not available: a network that loses or
delays packets (netem is not in every kernel), a shared file system that is full or hangs in the middle of a read or
write.
"""

from __future__ import annotations

import json
import math
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts import relay, resolver
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_testing.host_limits import disk_usage_bytes, limit_network, resize_disk

Download = Literal["refused", "cut short", "changed", "late"]  # relay.py knows them too

NEVER = math.inf
_END_TIMEOUT_S = 10.0
_DISK_SIZE = "50%"  # of the machine's memory, tmpfs's own default


class Faults:
    """The faults of a cluster's hosts, each a context manager.

    Where a method takes several host names, the default is every host that is on.
    """

    def __init__(self, cluster: NamespacedCluster) -> None:
        self._fabric = cluster.fabric

    @contextmanager
    def hung(self, hostname: str) -> Iterator[None]:
        """Stop all processes of the host; its kernel still accepts connections."""
        self._fabric.freeze(hostname)
        with self._undone(hostname, lambda: self._fabric.thaw(hostname)):
            yield

    @contextmanager
    def cut_off(self, hostname: str) -> Iterator[None]:
        """Cut the host's network; its shared folders stay, because they do not use it."""
        self._fabric.plug(hostname, into=False)
        with self._undone(hostname, lambda: self._fabric.plug(hostname, into=True)):
            yield

    @contextmanager
    def slow_network(self, hostname: str, *, mbit_s: int) -> Iterator[None]:
        """Limit what the host sends and receives; its shared folders keep their speed, because they do not use it."""
        limit_network(self._fabric, hostname, mbit_s=mbit_s)
        with self._undone(hostname, lambda: limit_network(self._fabric, hostname, mbit_s=None)):
            yield

    @contextmanager
    def full_disk(self, hostname: str) -> Iterator[None]:
        """Fill the host's disk; /tmp and /run are not on it."""
        resize_disk(self._fabric, hostname, f"{disk_usage_bytes(self._fabric, hostname)}")
        with self._undone(hostname, lambda: resize_disk(self._fabric, hostname, _DISK_SIZE)):
            yield

    @contextmanager
    def read_only(self, *hostnames: str, path: str) -> Iterator[None]:
        """Make the mount at a path read-only; files that are open for writing stay so."""
        with ExitStack() as undo:
            for hostname in hostnames or self._all():
                undo.enter_context(self._covered_read_only(hostname, path))
            yield

    @contextmanager
    def slow_files(self, *hostnames: str, path: str, delay_s: float, containing: str = "") -> Iterator[None]:
        """Delay each open of a file or folder below a mount point; NEVER: until the fault ends.

        Open files keep their speed, and so do calls that open nothing: stat, mkdir, rename.

        Args:
            hostnames: where.
            path: a mount point.
            delay_s: delay of each open.
            containing: only files with this in their path.
        """
        with ExitStack() as undo:
            for hostname in hostnames or self._all():
                undo.enter_context(self._slow_mount(hostname, path, delay_s, containing))
            yield

    @contextmanager
    def slow_dns(self, *, delay_s: float) -> Iterator[None]:
        """Delay AWS's names on every host; resolv.conf(5) gives up after 10 seconds."""
        with self._written(resolver.FAULT, {"delay_s": delay_s}):
            yield

    @contextmanager
    def download(self, path: str, *, how: Download, delay_s: float = 0.0, times: int = 1) -> Iterator[None]:
        """Spoil downloads of the hosts through the relay.

        Args:
            path: part of the URL's path, of GET requests.
            how: refused: the connection is reset. cut short: half of it arrives. changed: its last byte differs.
                late: it is only late.
            delay_s: before the answer, whatever ``how`` is.
            times: number of answers; the next ones are right.
        """
        with self._written(relay.FAULT, {"path": path, "how": how, "delay_s": delay_s, "times": times}):
            yield

    # ---- helpers --------------------------------------------------------------------------------------------------

    @contextmanager
    def _covered_read_only(self, hostname: str, path: str) -> Iterator[None]:
        """Mount the path again over itself: the kernel remounts no mount with files open for writing."""
        self._run(hostname, f"mount --bind '{path}' '{path}' && mount -o remount,ro,bind '{path}'")
        with self._undone(hostname, lambda: self._run(hostname, f"umount --lazy '{path}'")):
            yield

    @contextmanager
    def _slow_mount(self, hostname: str, path: str, delay_s: float, containing: str) -> Iterator[None]:
        program = (Path(__file__).parent / "slow_files.py").read_text()
        seconds = str(min(delay_s, threading.TIMEOUT_MAX))
        words = ["/usr/bin/python3", "-I", "-S", "-c", program, path, seconds, containing]
        with subprocess.Popen(
            self._fabric.enter(hostname, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise HostError(f"{hostname}: making {path} slow failed: {process.communicate()[1].strip()}")
                yield
            finally:
                _end(process)

    @contextmanager
    def _written(self, name: str, content: dict[str, object]) -> Iterator[None]:
        file = self._fabric.directory / name
        file.write_text(json.dumps(content))
        try:
            yield
        finally:
            file.unlink()

    @contextmanager
    def _undone(self, hostname: str, undo: Callable[[], None]) -> Iterator[None]:
        """Undo a fault at the end, unless the host is gone, and the fault with it."""
        init = self._fabric.init(hostname)
        try:
            yield
        finally:
            if self._fabric.is_up[hostname] and self._fabric.init(hostname) == init:
                undo()

    def _all(self) -> list[str]:
        return [name for name, is_up in self._fabric.is_up.items() if is_up]

    def _run(self, hostname: str, line: str) -> None:
        done = subprocess.run(
            self._fabric.enter(hostname, "bash", "-c", line), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise HostError(f"{hostname}: `{line}` ended with {done.returncode}: {done.stderr.strip()}")


def _end(process: subprocess.Popen[str]) -> None:
    """End the program by closing its input; kill it if its host is frozen."""
    try:
        process.communicate(timeout=_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
