"""Time steps, and find the rank that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

STRAGGLER_SHARE = 0.1  # A lag of a larger share of a step is reported.


@dataclass(frozen=True)
class Timing:
    """Times of the steps since the last log line, in seconds: their total, and means per step."""

    passed_s: float
    step_s: float
    data_s: float
    slowest_rank: int
    lag_s: float  # The slowest rank's lag behind the median rank.
    besides_s: dict[str, float]  # total seconds besides the steps, by what they were for
    first_step_s: float | None  # None unless the first step of this start is among these.

    @property
    def straggles(self) -> bool:
        """Return whether the slowest rank delays the others by more than ``STRAGGLER_SHARE`` of the step."""
        return self.lag_s > STRAGGLER_SHARE * self.step_s


class StepTimer:
    """Time one rank's steps, and the parts it spends alone: waiting for data, updating its weights.

    In forward and backward all ranks synchronize at every block, so their times there are the slowest one's: only the
    time alone shows which rank is late.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._alone_s = 0.0
        self._besides_s: dict[str, float] = {}
        self._is_first = True
        self._first_step_s: float | None = None
        self._reset()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a whole step, without its waits for other things."""
        begin, besides_s = perf_counter(), sum(self._besides_s.values())
        yield
        took = perf_counter() - begin - (sum(self._besides_s.values()) - besides_s)
        self._step_s += took
        self._steps += 1
        if self._is_first:
            self._first_step_s, self._is_first = took, False

    @contextmanager
    def besides(self, name: str) -> Iterator[None]:
        """Time a wait of training, between steps or within one."""
        begin = perf_counter()
        yield
        self._besides_s[name] = self._besides_s.get(name, 0.0) + perf_counter() - begin

    def take_besides_s(self) -> dict[str, float]:
        """Return these times since the last call of this or of ``timing``, in seconds by name, as ``saving_s``."""
        seconds_by_name, self._besides_s = self._besides_s, {}
        return {f"{name}_s": round(seconds, 4) for name, seconds in seconds_by_name.items()}

    @contextmanager
    def data(self) -> Iterator[None]:
        """Time the part of a step that waits for data."""
        begin = perf_counter()
        yield
        self._data_s += perf_counter() - begin
        self._alone_s += perf_counter() - begin

    @contextmanager
    def update(self) -> Iterator[None]:
        """Time the part of a step that updates the weights."""
        begin = perf_counter()
        yield
        self._alone_s += perf_counter() - begin

    def take_alone_us(self) -> int:
        """Return the microseconds spent alone since the last call, to share with the other ranks."""
        spent, self._alone_s = self._alone_s, 0.0
        return round(spent * 1e6)

    def add_alone_us(self, of_ranks: Tensor) -> None:
        """Add the times of all ranks, int64 ``[world_size]`` on the CPU."""
        self._alone_us += of_ranks

    def timing(self) -> Timing:
        """Return the times since the last call, and reset."""
        slowest = int(self._alone_us.argmax())
        lag_us = self._alone_us[slowest].item() - median(self._alone_us.tolist())
        timing = Timing(
            passed_s=self._step_s,
            step_s=self._step_s / self._steps,
            data_s=self._data_s / self._steps,
            slowest_rank=slowest,
            lag_s=lag_us / 1e6 / self._steps,
            besides_s=self.take_besides_s(),
            first_step_s=self._first_step_s,
        )
        self._reset()
        return timing

    def _reset(self) -> None:
        self._steps, self._step_s, self._data_s = 0, 0.0, 0.0
        self._first_step_s = None
        self._alone_us = torch.zeros(self._world_size, dtype=torch.int64)
