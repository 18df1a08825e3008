"""Map a local file into memory as bytes."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import DataError
from podwright_training.data.storage import is_local, open_file


def map_file(path: str) -> NDArray[np.uint8]:
    """Return the bytes of a file, which the system reads when they are used, and unmaps with the last array of them.

    Raises:
        DataError: The file is remote or unreadable.
    """
    if not is_local(path):
        raise DataError(f"{path}: token files are memory-mapped; copy them to a file system")
    with open_file(path) as file:
        if not file.seek(0, 2):
            return np.empty(0, dtype=np.uint8)  # an empty file cannot be mapped
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
