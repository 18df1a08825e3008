"""Read blocks of documents from one shard, by format.

A block has at most ``BLOCK_DOCUMENTS`` documents; a resume starts at a block. JSON lines are decompressed but not
parsed up to it, Parquet starts at its row group, Arrow and token shards at the block itself.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from podwright_training.data.bad_data import (
    BadRecordError,
    BadShardError,
    DataError,
    EmptyTextError,
    MissingColumnError,
    MissingTextError,
    first_line,
)
from podwright_training.data.storage import is_local, open_file
from podwright_training.data.token_shards import TokenShard

BLOCK_DOCUMENTS = 1024
CHUNK_BYTES = 1 << 20
ZSTD_BYTES = 8 << 10  # Arrow reads a piece whole or not at all: before damage, this much is lost
LINE_BYTES = 64 << 20  # A longer JSON record is broken, and never held in memory.

ARRAY_BYTES = 256  # Space before an array is shorter.
ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\"]")
ARRAY_HINT = "write one object per line, as by jq -c '.[]'"

Document = str | NDArray[Any]  # text, or token ids with the end-of-text token


class DocumentBlock(ABC):
    """Consecutive documents of a shard, decoded on access.

    Attributes:
        first_document: Number of the block's first document in the shard, from 0.
    """

    def __init__(self, first_document: int) -> None:
        self.first_document = first_document

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def document(self, index: int) -> Document:
        """Return one document; raise ``BadRecordError``."""

    def number(self, index: int) -> int | str:
        """Return the number of a document's record in the shard, from 1, or another name of its place there."""
        return self.first_document + index + 1


def read_blocks(path: str, *, column: str, start: int = 0) -> Iterator[DocumentBlock]:
    """Yield the blocks of a shard from number ``start`` on.

    Raises:
        BadShardError: The rest of the shard does not match its format.
        DataError: The shard is unreadable, or has no text column ``column``.
    """
    with shard_errors(path):
        yield from FORMATS[format_of(path)](path, column, start)


@contextmanager
def shard_errors(path: str) -> Iterator[None]:
    """Raise errors of reading and decoding a shard as ``BadShardError`` or ``DataError``."""
    try:
        yield
    except (EOFError, zlib.error, pa.ArrowException, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise BadShardError(f"truncated or damaged ({first_line(error)})") from error
    except OSError as error:
        if error.errno is None:  # Arrow's, for content; the system's errors have a number
            raise BadShardError(f"truncated or damaged ({first_line(error)})") from error
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def format_of(path: str) -> str:
    """Return the suffix of ``path`` in ``FORMATS``; empty for any other file."""
    return next((suffix for suffix in FORMATS if path.endswith(suffix)), "")


class JsonBlock(DocumentBlock):
    """Lines with a JSON object each; blank lines are no documents."""

    def __init__(self, first_document: int, lines: list[bytes], column: str) -> None:
        super().__init__(first_document)
        self._numbers = [number for number, line in enumerate(lines, first_document + 1) if not line.isspace() and line]
        self._lines = [lines[number - first_document - 1] for number in self._numbers]
        self._column = column

    def number(self, index: int) -> int | str:
        """Return the number of a line, from 1."""
        return self._numbers[index]

    def __len__(self) -> int:
        return len(self._lines)

    def document(self, index: int) -> str:
        """Return the text of a line; raise ``BadRecordError``."""
        if len(self._lines[index]) > LINE_BYTES:
            raise BadRecordError(f"a line of more than {LINE_BYTES >> 20} MiB")
        try:
            record = json.loads(self._lines[index])
        except (ValueError, RecursionError) as error:
            hint = f"; a JSON array begins here: {ARRAY_HINT}" if self._lines[index].strip() == b"[" else ""
            raise BadRecordError(f"not JSON ({error}){hint}") from error
        if isinstance(record, list):
            raise BadRecordError(f"a JSON array; {ARRAY_HINT}")
        if not isinstance(record, dict):
            raise BadRecordError(f"a {type(record).__name__}, not an object with {self._column!r}")
        if self._column not in record:
            raise MissingTextError(f"no column {self._column!r} (text_column); columns: {', '.join(record) or 'none'}")
        return _text(record[self._column], self._column)


class TextBlock(DocumentBlock):
    """Texts of a column."""

    def __init__(self, first_document: int, texts: pa.Array, column: str) -> None:
        super().__init__(first_document)
        _check_offsets(texts)
        self._texts = texts
        self._column = column

    def __len__(self) -> int:
        return len(self._texts)

    def document(self, index: int) -> str:
        """Return the text of a row; raise ``BadRecordError``."""
        try:
            text = self._texts[index].as_py()
        except UnicodeDecodeError as error:
            raise BadRecordError(f"not UTF-8 ({error})") from error
        return _text(text, self._column)


class TokenBlock(DocumentBlock):
    """Documents of a token shard."""

    def __init__(self, first_document: int, shard: TokenShard, documents: int) -> None:
        super().__init__(first_document)
        self._shard = shard
        self._documents = documents

    def __len__(self) -> int:
        return self._documents

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document; raise ``BadRecordError``."""
        tokens: NDArray[Any] = self._shard[self.first_document + index]
        return tokens


def _check_offsets(texts: pa.Array) -> None:
    """Raise ``pa.ArrowInvalid`` unless each text lies in the array's bytes; Arrow would read others, or abort."""
    texts.validate()  # the first and the last offset, and all of string views
    shortest = None if pa.types.is_string_view(texts.type) else pc.min(pc.binary_length(texts)).as_py()
    if shortest is not None and shortest < 0:
        raise pa.ArrowInvalid("its offsets decrease")


def _text(value: object, column: str) -> str:
    if value is None or value == "":
        raise EmptyTextError(f"an empty text in {column!r}")
    if not isinstance(value, str):
        raise MissingTextError(f"no text in {column!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may write half a character
        raise BadRecordError(f"no text in {column!r}: half of a surrogate pair") from error
    return value


def _json_blocks(path: str, column: str, start: int) -> Iterator[DocumentBlock]:
    first_document = start * BLOCK_DOCUMENTS
    lines: list[bytes] = []
    with open_file(path) as file:
        read = decompressing(path, file)
        try:
            for some in _lines(read, skipped=first_document):
                lines += some
                while len(lines) >= BLOCK_DOCUMENTS:
                    yield JsonBlock(first_document, lines[:BLOCK_DOCUMENTS], column)
                    first_document += BLOCK_DOCUMENTS
                    del lines[:BLOCK_DOCUMENTS]
        except (EOFError, zlib.error, OSError):  # A damaged file's lines before the damage are intact.
            if lines:
                yield JsonBlock(first_document, lines, column)
            raise
        if first_document == 0 and not lines and file.tell() == 0 and path.endswith((".gz", ".zst")):
            raise BadShardError("empty: it has no byte, as a compressed file of no text has")
    if lines:
        yield JsonBlock(first_document, lines, column)


def refuse_array(path: str) -> None:
    """Raise ``DataError`` if a local file of JSON is one array, of which single lines may look like records."""
    if not is_local(path) or ".json" not in format_of(path):
        return
    with open_file(path) as file, shard_errors(path):
        beginning = decompressing(path, file)(ARRAY_BYTES)
    if ARRAY.match(beginning):
        raise DataError(f"{path} is a JSON array: {ARRAY_HINT}")


def decompressing(path: str, file: BinaryIO) -> Callable[[int], bytes]:
    """Return a function that reads up to so many bytes of decompressed content, also the part before any damage.

    Arrow closes the file with what reads it.
    """
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=file).read1  # one of its own pieces; nothing is buffered twice
    if path.endswith(".zst"):
        stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
        return lambda _: cast("bytes", stream.read(ZSTD_BYTES))
    return file.read


def _lines(read: Callable[[int], bytes], *, skipped: int) -> Iterator[list[bytes]]:
    """Yield batches of lines after the first ``skipped`` lines; of a line too long, little more than its limit."""
    begun: list[bytes] = []  # pieces of a line whose end was not read yet
    size = 0
    while chunk := read(CHUNK_BYTES):
        if skipped:
            ends = chunk.count(b"\n")
            if ends < skipped:
                skipped -= ends
                continue
            chunk = chunk.split(b"\n", skipped)[-1]
            skipped = 0
        line_end, *following = chunk.split(b"\n")
        if size <= LINE_BYTES:
            begun.append(line_end)
            size += len(line_end)
        if following:
            *lines, open_line = following
            yield [b"".join(begun), *lines]
            begun, size = [open_line], len(open_line)
    if size and not skipped:
        yield [b"".join(begun)]


def _parquet_blocks(path: str, column: str, start: int) -> Iterator[DocumentBlock]:
    first_row = 0
    with open_file(path) as source, pq.ParquetFile(source) as file:
        check_column(path, file.schema_arrow, column)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            blocks = -(-rows // BLOCK_DOCUMENTS)
            if start < blocks:
                batches = file.iter_batches(BLOCK_DOCUMENTS, row_groups=[group], columns=[column], use_threads=False)
                for number, record_batch in enumerate(batches):
                    if number >= start:
                        yield TextBlock(first_row + number * BLOCK_DOCUMENTS, record_batch.column(0), column)
            start = max(start - blocks, 0)
            first_row += rows


def _arrow_blocks(path: str, column: str, start: int) -> Iterator[DocumentBlock]:
    first_row = 0
    with open_file(path) as file, pa.memory_map(path) if is_local(path) else pa.PythonFile(file, "r") as source:
        schema, batches = record_batches(source)
        check_column(path, schema, column)
        for record_batch in batches:
            for row in range(0, record_batch.num_rows, BLOCK_DOCUMENTS):
                if start:
                    start -= 1
                else:
                    yield TextBlock(first_row + row, record_batch.column(column).slice(row, BLOCK_DOCUMENTS), column)
            first_row += record_batch.num_rows


def record_batches(source: pa.NativeFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open Arrow's file format (index at the end) or its stream format, which ``datasets`` saves."""
    magic = source.read(6)
    source.seek(0)
    if magic == b"ARROW1":
        reader = pa.ipc.open_file(source)
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
    stream = pa.ipc.open_stream(source)
    return stream.schema, iter(stream)


def _token_blocks(path: str, _column: str, start: int) -> Iterator[DocumentBlock]:
    with closing(TokenShard(path)) as shard:
        for first in range(start * BLOCK_DOCUMENTS, len(shard), BLOCK_DOCUMENTS):
            yield TokenBlock(first, shard, min(BLOCK_DOCUMENTS, len(shard) - first))


def _refuse_tokens(path: str, _column: str, _start: int) -> Iterator[DocumentBlock]:
    raise DataError(f"{path} holds tokens, not text: name the dataset that they were made from")


def row_count(path: str) -> int:
    """Return the rows of a Parquet or Arrow file, whatever its columns."""
    with shard_errors(path), open_file(path) as source:
        if format_of(path) == ".parquet":
            with pq.ParquetFile(source) as file:
                return int(file.metadata.num_rows)
        _, batches = record_batches(pa.PythonFile(source, "r"))
        return sum(record_batch.num_rows for record_batch in batches)


def check_column(path: str, schema: pa.Schema, column: str) -> None:
    """Raise ``DataError`` unless a shard has a column of text of this name."""
    if column not in schema.names:
        raise MissingColumnError(f"{path} has no column {column!r} (text_column); columns: {', '.join(schema.names)}")
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(f"{path}: column {column!r} (text_column) has type {kind}, not text")


FORMATS: dict[str, Callable[[str, str, int], Iterator[DocumentBlock]]] = {
    ".jsonl": _json_blocks,
    ".jsonl.gz": _json_blocks,
    ".jsonl.zst": _json_blocks,
    ".json": _json_blocks,
    ".json.gz": _json_blocks,
    ".json.zst": _json_blocks,
    ".parquet": _parquet_blocks,
    ".arrow": _arrow_blocks,
    ".safetensors": _token_blocks,
    ".bin": _refuse_tokens,
    ".npy": _refuse_tokens,
    ".mds": _refuse_tokens,
}
FOREIGN_TOKENS = frozenset((".bin", ".npy", ".mds"))  # formats of tokens that other programs write
