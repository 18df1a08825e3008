"""Read the ``.bin`` and ``.idx`` files of Megatron's ``tools/preprocess_data.py``, memory-mapped.

The layout is that of ``megatron/core/datasets/indexed_dataset.py`` in NVIDIA/Megatron-LM (megatron-core 0.19.2). The
index has a header, then ``int32`` lengths of the sequences, ``int64`` places of their first bytes, and ``int64``
numbers of each document's first sequence, with the end. A document has several sequences if it was split into
sentences.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import BadRecordError, DataError
from podwright_training.data.mapped_file import map_file
from podwright_training.data.storage import has_index

SUFFIX, INDEX_SUFFIX = ".bin", ".idx"
MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<QBQQ")  # version, code of the type, sequences, entries of the document index
FAIRSEQ_HEADER, SEQUENCE_BYTES = struct.Struct("<QBQ"), 4 + 8  # It lists lengths and places alone.
VERSION = 1
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
MODE_BYTES = 1  # A multimodal index ends with the modes of its sequences.


def index_of(path: str) -> str:
    """Return the path of the index that belongs to a ``.bin`` file."""
    return path.removesuffix(SUFFIX) + INDEX_SUFFIX


def is_megatron(path: str) -> bool:
    """Return whether a file has an index beside it; raise ``DataError`` if the index is unusable."""
    return path.endswith(SUFFIX) and has_index(path, Path(index_of(path)))


class MegatronFile(Sequence[NDArray[Any]]):
    """Documents of a ``.bin`` file in the order of its index, with the tokens as they are stored.

    Raises:
        DataError: One of both files is unreadable or truncated, or they do not belong together.
    """

    def __init__(self, path: str) -> None:
        self._path, self._index_path = path, index_of(path)
        index = map_file(self._index_path)
        self._dtype, sequence_count, document_count = self._read_header(index)
        arrays, begin = [], len(MAGIC) + HEADER.size
        for dtype, count in (("<i4", sequence_count), ("<i8", sequence_count), ("<i8", document_count)):
            end = begin + count * np.dtype(dtype).itemsize
            if end > len(index):
                raise DataError(
                    f"{self._index_path} has {len(index):,} bytes, but its header describes more: it is truncated; "
                    "copy it again"
                )
            arrays.append(np.frombuffer(index, dtype=dtype, count=count, offset=begin))
            begin = end
        if len(index) not in (begin, begin + sequence_count * MODE_BYTES):
            raise DataError(f"{self._index_path} has {len(index):,} bytes, but its header describes {begin:,}")
        self._lengths, self._pointers, self._documents = arrays
        self._content = map_file(path)
        self._check_size()

    def _read_header(self, index: NDArray[np.uint8]) -> tuple[np.dtype[Any], int, int]:
        header = bytes(index[: len(MAGIC) + HEADER.size])
        if not header.startswith(MAGIC) or len(header) < len(MAGIC) + HEADER.size:
            raise DataError(
                f"{self._index_path} is not an index of Megatron's (it does not begin with MMIDIDX): remove it if "
                f"{Path(self._path).name} has plain tokens, or copy it again"
            )
        version, code, sequence_count, document_count = HEADER.unpack(header[len(MAGIC) :])
        dtype = np.dtype(DTYPES.get(code, "<f8"))
        if version != VERSION or dtype.kind == "f":
            raise DataError(
                f"{self._index_path}: version {version} with numbers of type {code}; this reads version {VERSION} "
                "with whole numbers (types 1 to 5 and 8)"
            )
        if len(index) == len(MAGIC) + FAIRSEQ_HEADER.size + sequence_count * SEQUENCE_BYTES:
            raise DataError(
                f"{self._index_path} is an index of fairseq's, which lists no documents and names types by other "
                "numbers: only those of Megatron's tools/preprocess_data.py are read"
            )
        if not document_count:
            raise DataError(f"{self._index_path} has no list of documents: it was not written to its end")
        return dtype, sequence_count, document_count

    def _check_size(self) -> None:
        """Compare the size of the tokens with the end of the last sequence in the index."""
        last_end = int(self._pointers[-1]) + int(self._lengths[-1]) * self._dtype.itemsize if len(self._lengths) else 0
        if len(self._content) != last_end or self._documents[-1] != len(self._lengths):
            raise DataError(
                f"{self._path} has {len(self._content):,} bytes, but {Path(self._index_path).name} describes "
                f"{last_end:,}: the .bin is truncated, or the .idx belongs to another .bin; copy both files again"
            )

    def __len__(self) -> int:
        return len(self._documents) - 1

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin, end = self._documents[index : index + 2].tolist()
        if not 0 <= begin <= end <= len(self._lengths):
            raise BadRecordError(f"{self._index_path} says that it has the sequences {begin} to {end}")
        sequences = [self._sequence(number) for number in range(begin, end)]
        return sequences[0] if len(sequences) == 1 else np.concatenate([np.empty(0, self._dtype), *sequences])

    def _sequence(self, number: int) -> NDArray[Any]:
        begin, size = int(self._pointers[number]), int(self._lengths[number]) * self._dtype.itemsize
        if size < 0 or not 0 <= begin <= begin + size <= len(self._content):
            raise BadRecordError(f"{self._index_path} says that it has the bytes {begin} to {begin + size}")
        return np.frombuffer(self._content, dtype=self._dtype, count=size // self._dtype.itemsize, offset=begin)
