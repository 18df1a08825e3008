"""Import a rank's modules once, then fork ranks from this process: the next one starts in milliseconds.

Started by the agent of its host, which sends commands through a socket and reads what became of the ranks. When the
agent ends, for whatever reason, so do this process and its ranks.

When a rank or host is lost, all ranks are killed and forked again. Keeping the healthy ones would save two seconds, but
a rank that hangs in a kernel or in NCCL may never leave its process groups.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from podwright_common.garbage import lasting_imports

LOOK_S = 0.01  # between two looks for ranks that have ended: the first of them is the cause
PR_SET_PDEATHSIG = 1  # prctl(2)
MODULES = (
    "podwright_training.loop.run",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
# Slurm sends them to all processes of a step: ranks write their stacks on USR2, the others are for the agent.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def serve(channel: socket.socket) -> None:
    """Import, then start and signal ranks as the agent says, until it is gone."""
    _end_with(os.getppid())
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking for GPUs must not start CUDA: it does not survive a fork
    with lasting_imports():  # A rank's garbage collection would copy the memory of all these modules.
        for name in MODULES:
            importlib.import_module(name)
    ranks = _Ranks(channel)
    ranks.record(ready=True)
    try:
        ranks.serve()
    finally:
        ranks.signal(signal.SIGKILL)


class _Ranks:
    """The ranks that this process has forked, by their number on the host."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pids: dict[int, int] = {}  # local rank, by process
        self._unread = b""

    def record(self, **message: Any) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                if selector.select(LOOK_S) and not self._obey():
                    return
                self._reap()

    def signal(self, number: int) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(pid, number)  # its data workers too
                else:
                    os.kill(pid, number)

    def _obey(self) -> bool:
        """Read commands; return whether the agent is still there."""
        received = self._channel.recv(1 << 16)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "start" in command:
                for environment in command["start"]:
                    self._start(command["argv"], environment)
            else:
                self.signal(command["signal"])
        return bool(received)

    def _start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_a_rank(self._channel, argv, environment, parent)
        with suppress(PermissionError, ProcessLookupError):  # the child does the same
            os.setpgid(pid, pid)
        self._pids[pid] = int(environment["LOCAL_RANK"])
        self.record(started=self._pids[pid], pid=pid)

    def _reap(self) -> None:
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._pids:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                self.record(ended=self._pids.pop(pid), status=os.waitstatus_to_exitcode(status))


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _be_a_rank(channel: socket.socket, argv: Sequence[str], environment: Mapping[str, str], parent: int) -> None:
    """Train; does not return."""
    status = 1
    try:
        os.setpgid(0, 0)
        _end_with(parent)
        channel.close()
        os.environ |= environment
        sys.modules["__main__"] = types.ModuleType("__main__")  # a data worker would import it, and torch
        faulthandler.enable()
        status = importlib.import_module("podwright_training.__main__").main(list(argv))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing may return to the server's loop
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
