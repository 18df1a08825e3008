"""Record a trace of chosen steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile

from podwright_training.loop.callback import Callback


class Profile(Callback):
    """Record a trace of some steps for https://ui.perfetto.dev; write it when the last of them ends."""

    def __init__(self, steps: range, path: Path) -> None:
        self._steps = steps
        self._path = path
        self._profiler: profile | None = None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record step ``number`` if it is one of the chosen ones."""
        if number in self._steps and self._profiler is None:
            self._profiler = profile()
            self._profiler.start()
        yield
        if self._profiler and number == self._steps[-1]:
            self._profiler.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._profiler = None
