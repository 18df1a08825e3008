"""Read tokens from the ``.mds`` shards of MosaicML's library streaming, memory-mapped.

The layout is that of ``streaming/base/format/mds/`` (``writer.py``, ``encodings.py``) in mosaicml/streaming 0.13.0: the
table of samples, the columns as JSON, and samples: the sizes of columns of variable size, then the columns. A sample
is a document; in datasets of llm-foundry, that is a sequence of one length, which may have several texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import BadRecordError, DataError
from podwright_training.data.chunk_file import NUMBER_BYTES, ChunkFile, numbers_in

SUFFIX = ".mds"
INDEX = "index.json"
TOKEN_COLUMNS = ("tokens", "input_ids")
DTYPE_BY_CODE = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
RANK_BITS = 2  # Of the first byte of a shape, these bits are the size of its numbers.


class MdsFile(Sequence[NDArray[Any]]):
    """Tokens of each sample, as they are stored.

    Args:
        path: Of the shard.
        column: With the tokens, if it is neither ``tokens`` nor ``input_ids``.
        dtype: Type of the numbers in a column of bytes.

    Raises:
        DataError: The file is unreadable or truncated, or has no column of tokens.

    Attributes:
        column: The column of the tokens.
    """

    def __init__(self, path: str, column: str, dtype: str | None) -> None:
        self._samples = ChunkFile(path, "MosaicML's streaming, MDS")
        try:
            columns = json.loads(self._samples.before_samples())
            names, encodings, self._sizes = (columns[f"column_{key}"] for key in ("names", "encodings", "sizes"))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a shard of MosaicML's streaming: its header lists no columns") from error
        chosen = next((name for name in (column, *TOKEN_COLUMNS) if name in names), None)
        encoding = encodings[names.index(chosen)] if chosen else ""
        if not encoding.startswith("ndarray") and encoding != "bytes":
            shown = ", ".join(f"{name} ({encoding})" for name, encoding in zip(names, encodings, strict=True))
            raise DataError(
                f"{path} has no column of tokens (ndarray or bytes) called {column!r} (text_column), "
                f"{' or '.join(TOKEN_COLUMNS)}; columns: {shown}"
            )
        if encoding == "bytes" and dtype is None:
            raise DataError(
                f"{path}: column {chosen} has bytes and does not say which numbers they are; set token_dtype (datasets "
                "of older versions of llm-foundry have int64)"
            )
        self.column: str = names[names.index(chosen)]
        self._place = names.index(chosen)
        self._decode = _BytesDecoder(str(dtype)) if encoding == "bytes" else _ArrayDecoder(encoding)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        sample = self._samples[index]
        variable = self._sizes.count(None)
        stored_sizes = iter(numbers_in(sample[: variable * NUMBER_BYTES], "<u4").tolist())
        try:
            sizes = [next(stored_sizes) if size is None else size for size in self._sizes]
        except StopIteration:
            raise BadRecordError("it is shorter than the sizes of its columns") from None
        begin = variable * NUMBER_BYTES + sum(sizes[: self._place])
        content = sample[begin : begin + sizes[self._place]]
        if len(content) < sizes[self._place]:
            raise BadRecordError("it is shorter than the sizes of its columns")
        try:
            return self._decode(content)
        except IndexError:
            raise BadRecordError("its column of tokens lacks the type or shape of its array") from None


class _BytesDecoder:
    """Bytes of numbers."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<").str

    def __call__(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        return numbers_in(content, self._dtype)


class _ArrayDecoder:
    """An array ``ndarray``, ``ndarray:uint16`` or ``ndarray:uint16:2048``; what its name lacks precedes the numbers."""

    def __init__(self, encoding: str) -> None:
        _, *settings = encoding.split(":")
        self._dtype = np.dtype(settings[0]).newbyteorder("<").str if settings else None
        self._has_shape = len(settings) == len(("dtype", "shape"))

    def __call__(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        dtype = self._dtype
        if dtype is None:
            code, content = content[0], content[1:]
            dtype = DTYPE_BY_CODE.get(int(code))
            if dtype is None:
                raise BadRecordError(f"its numbers are of type {code}, no whole numbers")
        if not self._has_shape:
            dimensions, size = divmod(int(content[0]), 1 << RANK_BITS)
            content = content[1 + (dimensions << size) :]
        return numbers_in(content, dtype)
