"""Collect signals that ask a run to stop, and agree with the other ranks whether to."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from typing_extensions import Self  # Python has it in typing from 3.11 on.

# Slurm's preemption, `sbatch --signal=USR1@…`, and Ctrl-C, which torchrun passes on.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
CTRL_C = b"\nCtrl-C: this step ends and a checkpoint is saved; press it again to end at once\n"


class StopRequests:
    """Signals that ask this rank to stop, collected instead of ending the process; a second Ctrl-C ends it.

    A shell's background job ignores SIGINT, which is meant for the foreground, and so do ranks that an agent started:
    they keep ignoring it.

    Attributes:
        signals: Numbers of the signals received.
        are_agreed: Some rank was asked to stop, as all ranks know.
    """

    def __init__(self, *, announces: bool) -> None:
        self._announces = announces
        self._handlers_before: dict[int, Any] = {}
        self.signals: list[int] = []
        self.are_agreed = False

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            if (number, signal.getsignal(number)) != (signal.SIGINT, signal.SIG_IGN):
                self._handlers_before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def agree(self) -> bool:
        """Return whether some rank was asked to stop; called by all ranks."""
        requests = torch.tensor(len(self.signals))
        dist.all_reduce(requests)
        self.are_agreed = self.are_agreed or int(requests) > 0
        return self.are_agreed

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.signals.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            if self._announces:
                os.write(2, CTRL_C)  # The signal may have interrupted `print`, whose buffer is not reentrant.
