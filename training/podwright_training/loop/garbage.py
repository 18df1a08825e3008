"""Collect garbage at the same steps on all ranks: a collection on one rank alone delays all others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from podwright_training.loop.callback import Callback
from podwright_training.loop.progress import RunProgress

EVERY_STEPS = 50
YOUNG = 1  # A full collection, of generation 2, takes as long as a step.


@contextmanager
def manual_collection() -> Iterator[None]:
    """Turn automatic collection off."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class GarbageCollection(Callback):
    """Collect young garbage every ``EVERY_STEPS`` steps."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress

    def after_step(self) -> None:
        """Collect young garbage if the step is due."""
        if self._progress.step % EVERY_STEPS == 0:
            gc.collect(YOUNG)
