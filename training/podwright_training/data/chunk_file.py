"""Read the samples of a file that begins with their number and places: what MDS and litdata have in common.

Both formats begin with the number of samples and, for each, the place of its first byte, and that of the end: 32 bits
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import BadRecordError, DataError
from podwright_training.data.mapped_file import map_file

NUMBER_BYTES = 4


class ChunkFile(Sequence[NDArray[np.uint8]]):
    """The bytes of each sample.

    Attributes:
        header_end: Place behind the table of places.

    Raises:
        DataError: The file is unreadable or truncated.
    """

    def __init__(self, path: str, format_name: str) -> None:
        self._content = map_file(path)
        count = int(np.frombuffer(self._content, "<u4", 1)[0]) if len(self._content) >= NUMBER_BYTES else 0
        self.header_end = (2 + count) * NUMBER_BYTES
        is_whole = self.header_end <= len(self._content)
        self._places = np.frombuffer(self._content, "<u4", count + 1, NUMBER_BYTES) if is_whole else np.zeros(1, "<u4")
        if not is_whole or self._places[-1] != len(self._content):
            raise DataError(
                f"{path} has {len(self._content):,} bytes, but its header describes {int(self._places[-1]):,}: it is "
                f"truncated, compressed or no file of {format_name}; copy it again"
            )

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin, end = self._places[index : index + 2].tolist()
        if not self.header_end <= begin <= end <= len(self._content):
            raise BadRecordError(f"its header says that it has the bytes {begin} to {end}")
        return self._content[begin:end]

    def before_samples(self) -> bytes:
        """Return what is between the table of places and the first sample."""
        return self._content[self.header_end : int(self._places[0])].tobytes()


def numbers_in(content: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Return the numbers in a sample; raise ``BadRecordError`` if its bytes are no multiple of theirs."""
    if len(content) % np.dtype(dtype).itemsize:
        raise BadRecordError(f"its {len(content)} bytes are no multiple of those of {np.dtype(dtype).name}")
    return np.frombuffer(content, dtype=dtype)
