"""Keep Python from looking for garbage among imported modules: libraries make millions of objects that stay."""

import atexit
import gc
from contextlib import contextmanager
from typing import Iterator


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


def skip_last_collections() -> None:
    """Keep Python from collecting garbage when the process ends.

    It would free each object of each imported module, and the system frees all memory at once. Files are to be closed
    where they are written: an object in a reference cycle is no longer finalized.
    """
    atexit.register(gc.freeze)
