"""Read files of plain tokens, one document behind the other, memory-mapped.

Such files have no index: a document ends with its end-of-text token, and is read from any place like a line of text.
What precedes the tokens is nothing, or one of two headers:

- nothing: ``train.bin`` of karpathy/nanoGPT (``data/openwebtext/prepare.py``), and OLMo's ``.npy`` files, which
  are ``numpy.memmap`` (``src/olmo_core/data/utils.py`` in allenai/OLMo-core)
- 256 numbers of 32 bits: the shards of karpathy/llm.c (``dev/data/data_common.py``) and of KellerJordan/modded-nanogpt
- the header of ``numpy.save``: the shards of karpathy/build-nanogpt (``fineweb.py``)
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import BadRecordError, DataError
from podwright_training.data.formats import DocumentBlock
from podwright_training.data.mapped_file import map_file
from podwright_training.data.span_reader import SpanReader
from podwright_training.data.token_rule import TokenRule

SUFFIXES = (".bin", ".npy")
LLM_C_BYTES = 256 * 4  # size of llm.c's header
LLM_C_DTYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # The key is magic number and version.
LLM_C_QUESTIONS = 20240522  # magic number of files such as hellaswag_val.bin
NUMPY_MAGIC = b"\x93NUMPY"
NUMPY_HEADER_BYTES = 1 << 16  # A header of an array of numbers is much shorter.
DOCUMENT_BYTES = 64 << 20  # A longer document is broken, and never held in memory.
CHECKED_BYTES = 1 << 20  # A wrong type shows in the beginning of a file.
LEAST_NUMBERS = 400  # Fewer numbers may have such parts by chance.
MOST_SMALL, LEAST_SMALL_PARTS = 0.5, 0.99  # shares of 0 and 1 among the first and among the other parts of numbers
WIDER_DTYPES = {2: "uint16", 4: "uint32", 8: "int64"}  # Keys are bytes of a number.
PIECE_TOKENS = 64 << 10  # searched at a time for the end of a document


class Layout(NamedTuple):
    """Place and type of a file's tokens.

    Attributes:
        header_bytes: Bytes before the first token.
        dtype: Of the tokens.
        token_count: Tokens by the header; ``None``: as many as there are.
    """

    header_bytes: int
    dtype: np.dtype[Any]
    token_count: int | None


class RawReader(SpanReader):
    """Documents of a file of plain tokens.

    Raises:
        DataError: The file is unreadable or truncated, or does not name its type where ``token_dtype`` is not set.
    """

    def __init__(self, path: str, rule: TokenRule) -> None:
        content = map_file(path)
        self._rule = rule
        self._header_bytes, dtype, token_count = layout_of(path, content, rule.dtype)
        size = len(content) - self._header_bytes
        if size % dtype.itemsize:
            raise DataError(
                f"{path} has {size:,} bytes of tokens, which is no multiple of the {dtype.itemsize} bytes of "
                f"{dtype.name}: it is truncated, or token_dtype is wrong"
            )
        if token_count is not None and token_count * dtype.itemsize != size:
            raise DataError(
                f"{path} has {size // dtype.itemsize:,} tokens, but its header says {token_count:,}: it is truncated; "
                "copy it again"
            )
        self._tokens = np.frombuffer(content, dtype=dtype, offset=self._header_bytes) if size else np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def has_end(self) -> bool:
        """Return whether a document ends in the first 64 MiB of the tokens."""
        end = self._end(0)
        return end is not None and bool(self._tokens[end - 1] == self._rule.stored_end)

    @property
    def wider_dtype(self) -> str | None:
        """Return the type that the beginning of a file without a header rather has: a part of each number is 0 or 1."""
        tokens = self._tokens[: CHECKED_BYTES // self._tokens.itemsize] if not self._header_bytes else self._tokens[:0]
        for itemsize in (8, 4, 2):
            parts = itemsize // self._tokens.itemsize
            if parts <= 1 or len(tokens) < LEAST_NUMBERS * parts:
                continue
            small = (tokens[: len(tokens) // parts * parts].reshape(-1, parts) <= 1).mean(axis=0)
            if small[0] < MOST_SMALL and all(small[1:] > LEAST_SMALL_PARTS):
                return WIDER_DTYPES[itemsize]
        return None

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        """Yield the documents that begin in a span as one block."""
        first_token, stop = self._number_at(begin), self._number_at(end)
        before = max(first_token - 1, 0)  # A document begins behind the end of another.
        starts = np.flatnonzero(self._tokens[before : max(stop - 1, before)] == self._rule.stored_end) + before + 1
        if first_token == 0 < stop:
            starts = np.concatenate([[0], starts])
        yield _RawBlock(self._tokens, starts, self._end(int(starts[-1])) if len(starts) else 0, self._rule)

    def _number_at(self, place: int) -> int:
        """Return the number of the first token that begins at a byte of the file or behind it."""
        number = -(-max(place - self._header_bytes, 0) // self._tokens.itemsize)
        return min(number, len(self._tokens))

    def _end(self, start: int) -> int | None:
        """Return the number of the token behind a document's last one; ``None`` if it is too long."""
        limit = start + DOCUMENT_BYTES // self._tokens.itemsize
        for begin in range(start, min(limit, len(self._tokens)), PIECE_TOKENS):
            ends = np.flatnonzero(self._tokens[begin : begin + PIECE_TOKENS] == self._rule.stored_end)
            if len(ends):
                return begin + int(ends[0]) + 1
        return None if limit < len(self._tokens) else len(self._tokens)


class _RawBlock(DocumentBlock):
    """Documents of a span, cut out of the mapped file on access."""

    def __init__(self, tokens: NDArray[Any], starts: NDArray[np.int64], end: int | None, rule: TokenRule) -> None:
        super().__init__(0)
        self._tokens, self._starts, self._last_end, self._rule = tokens, starts, end, rule

    def __len__(self) -> int:
        return len(self._starts)

    def number(self, index: int) -> int | str:
        """Return the place of a document's first token, as documents of such a file have no numbers."""
        return f"token {int(self._starts[index]):,}"

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document; raise ``BadRecordError``."""
        end = int(self._starts[index + 1]) if index + 1 < len(self._starts) else self._last_end
        if end is None:
            raise BadRecordError(
                f"no token {self._rule.stored_end}, which ends a document, in {DOCUMENT_BYTES >> 20} MiB: set "
                "token_end to the token that ends one in this file"
            )
        return self._rule.document(self._tokens[int(self._starts[index]) : end])


def layout_of(path: str, content: NDArray[np.uint8], dtype: str | None) -> Layout:
    """Return the layout that a file's first bytes name, or that of tokens of ``dtype`` from the first byte on.

    Raises:
        DataError: The file has a header that cannot be read, or none while ``dtype`` is ``None``.
    """
    if content[: len(NUMPY_MAGIC)].tobytes() == NUMPY_MAGIC:
        return _numpy_layout(path, content[:NUMPY_HEADER_BYTES].tobytes())
    if len(content) >= LLM_C_BYTES:
        magic, version, token_count = np.frombuffer(content, dtype="<i4", count=3).tolist()
        if magic == LLM_C_QUESTIONS:
            raise DataError(f"{path} has llm.c's questions and answers for an evaluation, no text: remove it")
        if (magic, version) in LLM_C_DTYPES:
            return Layout(LLM_C_BYTES, np.dtype(LLM_C_DTYPES[magic, version]), token_count)
    if dtype is None and not len(content):
        raise DataError(f"{path} has no byte: remove it, or copy it again")
    if dtype is None:
        raise DataError(
            f"{path} does not say which numbers it has: it has neither an .idx file of Megatron's beside it, nor a "
            "header of llm.c or numpy; set token_dtype, such as uint16"
        )
    return Layout(0, np.dtype(dtype).newbyteorder("<"), None)


def _numpy_layout(path: str, beginning: bytes) -> Layout:
    stream = io.BytesIO(beginning)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read_header[version](stream)
    except (ValueError, KeyError) as error:
        raise DataError(f"{path} begins as a file of numpy.save, but its header cannot be read ({error})") from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise DataError(f"{path} is an array of {dtype} with shape {shape}; token files are one row of whole numbers")
    return Layout(stream.tell(), dtype, shape[0])
