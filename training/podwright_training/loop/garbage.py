"""Collect garbage at the same steps on all ranks: a collection on one rank alone delays all others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_STEPS = 50
YOUNG = 1  # generation; a full collection takes as long as a step


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


def collect(step: int) -> None:
    """Collect young garbage if the step is due."""
    if step % EVERY_STEPS == 0:
        gc.collect(YOUNG)
