"""Read tokens from the chunks of Lightning's litdata, memory-mapped.

The layout is that of ``src/litdata/streaming/`` (``writer.py``, ``item_loader.py``) in Lightning-AI/litData 0.2.76, for
datasets that were written with ``item_loader=TokensLoader()``: the table of samples, then the samples' numbers, of a
type that ``index.json`` names. A sample is a document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from podwright_training.data.bad_data import DataError
from podwright_training.data.chunk_file import ChunkFile, numbers_in
from podwright_training.data.storage import has_index

INDEX = "index.json"
CHUNK_PREFIX, SUFFIX = "chunk-", ".bin"
# Types of torch and of numpy by their number, as litdata/constants.py lists them.
DTYPE_BY_FORMAT = {
    "no_header_tensor": {
        11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2",
    },
    "no_header_numpy": {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8"},
}  # fmt: skip


def is_litdata(path: str) -> bool:
    """Return whether a file is a chunk with an index of its folder; raise ``DataError`` if the index is unusable."""
    name = Path(path).name
    is_chunk = name.startswith(CHUNK_PREFIX) and name.endswith(SUFFIX)
    return is_chunk and has_index(path, Path(path).with_name(INDEX))


class LitdataFile(Sequence[NDArray[Any]]):
    """Tokens of each sample, as they are stored.

    Raises:
        DataError: The file is unreadable, truncated or compressed, or its samples are not single rows of numbers.
    """

    def __init__(self, path: str) -> None:
        self._dtype = _dtype_in(Path(path).with_name(INDEX))
        self._samples = ChunkFile(path, "litdata")

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return numbers_in(self._samples[index], self._dtype)


@lru_cache(maxsize=16)  # A stream opens a chunk thousands of times, and the index of a large dataset has megabytes.
def _dtype_in(index: Path) -> str:
    """Return the type of the numbers that an index names; raise ``DataError`` if it is none of whole numbers."""
    try:
        settings = json.loads(index.read_bytes())["config"]
        (data_format,) = settings["data_format"]
        name, code = data_format.split(":")
        dtype = DTYPE_BY_FORMAT[name][int(code)]
    except OSError as error:
        raise DataError(f"cannot read {index}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{index} does not describe samples that are one row of whole numbers, as litdata writes them with "
            "item_loader=TokensLoader()"
        ) from error
    for key in ("compression", "encryption"):
        if settings.get(key):
            raise DataError(f"{index} says {key}: {settings[key]}; write the dataset again without {key}")
    return dtype
