"""End a process without the work that only matters if it went on."""

import atexit
import gc


def skip_last_collections() -> None:
    """Keep Python from collecting garbage when the process ends.

    It would free each object of each imported module, and the system frees all memory at once. Files are to be closed
    where they are written: an object in a reference cycle is no longer finalized.
    """
    atexit.register(gc.freeze)
