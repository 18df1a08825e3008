"""How long steps take, which rank the others wait for, and a trace of the steps one asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

STRAGGLER_SHARE = 0.1  # of a step: a rank that costs the others more is worth a look


@dataclass(frozen=True)
class Timing:
    """Of the steps since the last log line, in seconds: means, and all of them together."""

    passed_s: float
    step_s: float
    data_s: float
    slowest_rank: int
    lag_s: float  # of the slowest rank behind the median one

    @property
    def straggles(self) -> bool:
        """Whether the slowest rank costs the others a part of the step that is worth a look."""
        return self.lag_s > STRAGGLER_SHARE * self.step_s


class StepTimer:
    """Times one rank's steps, and the parts of them that it spends alone: waiting for data, updating its weights.

    In forward and backward all ranks meet at every block, so their times there are the slowest one's: only what a rank
    does alone tells who is late.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._alone_s = 0.0
        self._begin_anew()

    @contextmanager
    def step(self) -> Iterator[None]:
        """A whole step."""
        begin = perf_counter()
        yield
        self._step_s += perf_counter() - begin
        self._steps += 1

    @contextmanager
    def data(self) -> Iterator[None]:
        """The part of a step that waits for data."""
        begin = perf_counter()
        yield
        self._data_s += perf_counter() - begin
        self._alone_s += perf_counter() - begin

    @contextmanager
    def update(self) -> Iterator[None]:
        """The part of a step that updates the weights."""
        begin = perf_counter()
        yield
        self._alone_s += perf_counter() - begin

    def take_alone_us(self) -> int:
        """Microseconds spent alone since this was asked last; to be shared with the other ranks."""
        spent, self._alone_s = self._alone_s, 0.0
        return round(spent * 1e6)

    def add_alone_us(self, of_ranks: Tensor) -> None:
        """Take note of what all ranks say, int64 ``[world_size]`` on the CPU."""
        self._alone_us += of_ranks

    def timing(self) -> Timing:
        """Means per step; begins anew."""
        slowest = int(self._alone_us.argmax())
        lag_us = self._alone_us[slowest].item() - median(self._alone_us.tolist())
        timing = Timing(
            passed_s=self._step_s,
            step_s=self._step_s / self._steps,
            data_s=self._data_s / self._steps,
            slowest_rank=slowest,
            lag_s=lag_us / 1e6 / self._steps,
        )
        self._begin_anew()
        return timing

    def _begin_anew(self) -> None:
        self._steps, self._step_s, self._data_s = 0, 0.0, 0.0
        self._alone_us = torch.zeros(self._world_size, dtype=torch.int64)
