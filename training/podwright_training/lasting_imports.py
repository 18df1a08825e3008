"""Import libraries such as torch without garbage collections: they make millions of objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Exclude all objects that exist at the end of the context from this and later garbage collections."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if is_enabled:
            gc.enable()
