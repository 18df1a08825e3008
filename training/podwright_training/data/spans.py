"""Read the documents of a shard by their place: those that begin in a span of its bytes.

The place of a line is its first byte. In a compressed file it is that of its first byte among the compressed ones, or
in a small file in proportion to the decompressed ones. Rows and tokenized documents lie at equal distances. So spans
that cover a file's bytes once have every document once.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from podwright_training.data.bad_data import BadShardError, DataError
from podwright_training.data.formats import (
    CHUNK_BYTES,
    FOREIGN_TOKENS,
    LINE_BYTES,
    DocumentBlock,
    JsonBlock,
    TextBlock,
    TokenBlock,
    check_column,
    decompressing,
    format_of,
    record_batches,
)
from podwright_training.data.span_reader import RowReader, SpanReader
from podwright_training.data.storage import is_local, open_file, open_unbuffered
from podwright_training.data.token_files import open_token_file
from podwright_training.data.token_rule import TokenRule
from podwright_training.data.token_shards import SUFFIX as TOKENS
from podwright_training.data.token_shards import TokenShard

DIVISIBLE = frozenset(
    (".json", ".jsonl", TOKENS, *FOREIGN_TOKENS)
)  # formats that can be read from any place at no cost
WHOLE_BYTES = 4 << 20  # a compressed file up to this size is decompressed whole for each window that it is in
PIECE_BYTES = 16 << 10  # Places in a larger file are this precise.
BEYOND_BYTES = 16 << 10  # read with a span, for the end of its last line
LONG_LINE_BYTES = 1 << 20  # read at a time of a longer line
COUNTED_BYTES = 1 << 30  # a broken line is named by its number if no more bytes are before it

Lines = list[tuple[int, bytes]]  # place or number of each, and content


def open_spans(path: str, size: int, *, column: str, tokenizer: str, token_rule: TokenRule | None = None) -> SpanReader:
    """Open a shard.

    Args:
        path: Path or URL.
        size: Its bytes.
        column: Column of the text.
        tokenizer: Digest of the encoder that token shards must be of.
        token_rule: Meaning of the numbers in token files of other programs; ``None`` where there are none.

    Raises:
        DataError: The shard is unreadable, has no text column, or has tokens of another tokenizer.
    """
    kind = format_of(path)
    if kind == TOKENS:
        return _TokenReader(path, size, tokenizer)
    if token_rule and kind in FOREIGN_TOKENS:
        return open_token_file(path, size, token_rule, column=column)
    if kind == ".parquet":
        return _ParquetReader(path, size, column)
    if kind == ".arrow":
        return _ArrowReader(path, size, column)
    if kind in DIVISIBLE:
        return _LineReader(path, column)
    return (_WholeReader if size <= WHOLE_BYTES else _SequentialReader)(path, size, column)


def check_tokenizer(path: str, shard: TokenShard, tokenizer: str) -> None:
    """Raise ``DataError`` unless a token shard is of this tokenizer."""
    if shard.tokenizer != tokenizer:
        raise DataError(f"{path} holds tokens of another tokenizer ({shard.tokenizer}) than this one ({tokenizer})")


class _LineBlock(JsonBlock):
    """Lines, of which ``number_of`` returns the number from their place."""

    def __init__(self, lines: Lines, column: str, number_of: Callable[[int], int | str]) -> None:
        DocumentBlock.__init__(self, 0)
        lines = [(place, line) for place, line in lines if line and not line.isspace()]
        self._places = [place for place, _ in lines]
        self._lines = [line for _, line in lines]
        self._column = column
        self._number_of = number_of

    def number(self, index: int) -> int | str:
        return self._number_of(self._places[index])


class _LineReader(SpanReader):
    """Lines of a file that is not compressed."""

    def __init__(self, path: str, column: str) -> None:
        self._path = path
        self._column = column

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        with open_unbuffered(self._path) as file:
            lines = list(_lines_between(file, begin, end))
        yield _LineBlock(lines, self._column, self._number_of)

    def _number_of(self, place: int) -> int | str:
        if place > COUNTED_BYTES:
            return f"byte {place}"
        with open_file(self._path) as file:
            pieces = (file.read(min(CHUNK_BYTES, place - begin)) for begin in range(0, place, CHUNK_BYTES))
            return 1 + sum(piece.count(b"\n") for piece in pieces)


class _WholeReader(SpanReader):
    """Lines of a small compressed file; its content is in memory only while it is read."""

    def __init__(self, path: str, size: int, column: str) -> None:
        self._path, self._size, self._column = path, size, column

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        content, error = self._decompress()
        content_begin, content_end = (place * len(content) // self._size for place in (begin, end))
        lines = list(_lines_between(io.BytesIO(content), content_begin, content_end))
        yield _LineBlock(lines, self._column, self._number_of)
        if error:
            raise error

    def _decompress(self) -> tuple[bytes, Exception | None]:
        """Return the content up to its damage, and the error there."""
        pieces: list[bytes] = []
        with open_file(self._path) as file:
            read = decompressing(self._path, file)
            try:
                while piece := read(CHUNK_BYTES):
                    pieces.append(piece)
            except Exception as error:  # noqa: BLE001 - of any decompressor; raised again by the caller
                return b"".join(pieces), error
        return b"".join(pieces), None

    def _number_of(self, place: int) -> int:
        return 1 + self._decompress()[0].count(b"\n", 0, place)


class _SequentialReader(SpanReader):
    """Lines of a large compressed file, decompressed up to the span."""

    def __init__(self, path: str, _size: int, column: str) -> None:
        self._path, self._column = path, column
        self._begin()

    def _begin(self) -> None:
        self._file = open_file(self._path)
        self._lines = self._numbered()
        self._next: tuple[int, int, bytes] | None = None  # place, number and content of a line behind the last span
        self._end = 0  # end of the last span

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        if begin < self._end:
            self.close()
            self._begin()
        self._end = end
        lines: Lines = []
        error = None
        try:
            while line := self._next or next(self._lines, None):
                self._next = None
                place, number, content = line
                if place >= end:
                    self._next = line
                    break
                if place >= begin:
                    lines.append((number, content))
        except Exception as damage:  # noqa: BLE001 - of any decompressor; what is before it is whole
            error = damage
        yield _LineBlock(lines, self._column, lambda number: number)
        if error:
            raise error

    def _numbered(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield each line with its place and number; of a line too long, little more than its limit."""
        pieces = _Pieces(self._file)
        read = decompressing(self._path, cast("BinaryIO", pieces))
        begun: list[bytes] = []  # pieces of a line whose end was not read yet
        place, number, size = 0, 1, 0
        while chunk := read(CHUNK_BYTES):
            line_end, *following = chunk.split(b"\n")
            if size <= LINE_BYTES:
                begun.append(line_end)
                size += len(line_end)
            if following:
                *lines, open_line = following
                yield place, number, b"".join(begun)
                place = pieces.place
                for line in lines:
                    number += 1
                    yield place, number, line
                number += 1
                begun, size = [open_line], len(open_line)
        if size:
            yield place, number, b"".join(begun)

    def close(self) -> None:
        self._file.close()


class _Pieces(io.RawIOBase):
    """A file read in pieces of one size, whatever size a caller requests.

    Attributes:
        place: First byte of the last piece.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0
        self.place = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer; its readers give views
        piece = self._file.read(min(len(buffer), PIECE_BYTES))
        if piece:
            self.place, self._end = self._end, self._end + len(piece)
            buffer[: len(piece)] = piece
        return len(piece)


class _TokenReader(RowReader):
    """Documents of a token shard, a row each."""

    def __init__(self, path: str, size: int, tokenizer: str) -> None:
        super().__init__(size)
        self._shard = TokenShard(path)
        check_tokenizer(path, self._shard, tokenizer)

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        first_row, stop = self._rows_between(begin, end, len(self._shard))
        yield TokenBlock(first_row, self._shard, stop - first_row)


class _ParquetReader(RowReader):
    """Texts of a Parquet file; those of a row group are decoded from its first row on."""

    def __init__(self, path: str, size: int, column: str) -> None:
        super().__init__(size)
        self._column = column
        with ExitStack() as opened:
            source = opened.enter_context(open_file(path))
            self._file = pq.ParquetFile(source)
            check_column(path, self._file.schema_arrow, column)
            self._opened = opened.pop_all()
        groups = (self._file.metadata.row_group(group) for group in range(self._file.num_row_groups))
        self._group_begins = [0, *accumulate(group.num_rows for group in groups)]
        self._group = -1
        self._begin = 0  # row of the first text
        self._texts: pa.Array = pa.array([], pa.string())
        self._following: Iterator[pa.RecordBatch] = iter(())

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        first_row, stop = self._rows_between(begin, end, self._group_begins[-1])
        while first_row < stop:
            self._seek(first_row)
            texts = self._texts.slice(first_row - self._begin, stop - first_row)
            yield TextBlock(first_row, texts, self._column)
            first_row += len(texts)

    def _seek(self, row: int) -> None:
        """Decode the batch that has a row."""
        group = bisect_right(self._group_begins, row) - 1
        if group != self._group or row < self._begin:
            self._group, self._begin = group, self._group_begins[group]
            self._texts = self._texts.slice(0, 0)
            self._following = self._file.iter_batches(row_groups=[group], columns=[self._column], use_threads=False)
        self._group = -1  # If the group is damaged, whoever reads behind the damage decodes it anew.
        while row >= self._begin + len(self._texts):
            self._begin += len(self._texts)
            record_batch = next(self._following, None)
            if record_batch is None:
                raise BadShardError(f"truncated or damaged (row group {group} has fewer rows than the file's end says)")
            self._texts = record_batch.column(0)
        self._group = group

    def close(self) -> None:
        self._opened.close()


class _ArrowReader(RowReader):
    """Texts of an Arrow file, mapped into memory; a remote one is read whole."""

    def __init__(self, path: str, size: int, column: str) -> None:
        super().__init__(size)
        self._column = column
        self._parts: list[pa.Array] = []
        self._error: Exception | None = None
        with open_file(path) as file, pa.memory_map(path) if is_local(path) else pa.PythonFile(file, "r") as source:
            schema, batches = record_batches(source)
            check_column(path, schema, column)
            try:
                self._parts.extend(record_batch.column(column) for record_batch in batches)
            except (pa.ArrowException, OSError) as error:  # The batches before the damage are intact.
                self._error = error
        self._begins = [0, *accumulate(map(len, self._parts))]

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        first_row, stop = self._rows_between(begin, end, self._begins[-1])
        while first_row < stop:
            part = bisect_right(self._begins, first_row) - 1
            texts = self._parts[part].slice(first_row - self._begins[part], stop - first_row)
            yield TextBlock(first_row, texts, self._column)
            first_row += len(texts)
        if self._error:
            raise self._error


def _lines_between(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the place and content of each line whose first byte is in a span; of a line too long, its beginning."""
    before = max(begin - 1, 0)  # a line begins behind the end of another
    file.seek(before)
    content = file.read(end - before + BEYOND_BYTES)
    line = content.find(b"\n", 0, max(end - before - 1, 0)) + 1 if begin else 0
    if begin and not line:
        return
    while before + line < end:
        stop = content.find(b"\n", line)
        if stop < 0:
            yield before + line, content[line:] + _to_line_end(file, len(content) - line)
            return
        yield before + line, content[line:stop]
        line = stop + 1


def _to_line_end(file: BinaryIO, size: int) -> bytes:
    """Return the remainder of a line of which ``size`` bytes were read, up to its end or its limit."""
    pieces: list[bytes] = []
    while size <= LINE_BYTES and (piece := file.read(LONG_LINE_BYTES)):
        line_end, *following = piece.split(b"\n", 1)
        pieces.append(line_end)
        size += len(line_end)
        if following:
            break
    return b"".join(pieces)
