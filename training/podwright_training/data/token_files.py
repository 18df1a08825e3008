"""Open files of tokens that other programs wrote, by what is in them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from numpy.typing import NDArray

from podwright_training.data import litdata, mds, megatron
from podwright_training.data.bad_data import BadRecordError, DataError
from podwright_training.data.formats import DocumentBlock
from podwright_training.data.mapped_file import map_file
from podwright_training.data.raw_tokens import RawReader, layout_of
from podwright_training.data.span_reader import RowReader, SpanReader
from podwright_training.data.token_rule import TokenRule

logger = logging.getLogger(__name__)

OLMO_METADATA = ".csv.gz"  # Boundaries of documents; the tokens have them too.
HASHED_BYTES, SAMPLE_BYTES, LEAST_SAMPLES = 256 << 20, 4 << 10, 16  # A source's indexes share the first.
CHECKED_DOCUMENTS, CHECKED_BYTES = 64, 1 << 20  # A check reads the beginning of each file.
LEAST_EQUAL_ENDS = 8  # So many documents hardly end with the same word.


def indexes_among(names: Iterable[str]) -> set[str]:
    """Return the files of a dataset that describe token files beside them, and have no data themselves."""
    names = set(names)
    indexes = {megatron.index_of(name) for name in names if name.endswith(megatron.SUFFIX)}
    indexes |= {name.removesuffix(".npy") + OLMO_METADATA for name in names if name.endswith(".npy")}
    for path in map(PurePosixPath, names):
        if mds.SUFFIX in path.suffixes or (
            path.name.startswith(litdata.CHUNK_PREFIX) and path.suffix == litdata.SUFFIX
        ):
            indexes.add(str(path.with_name(mds.INDEX)))
    return names & indexes


def indexes_digest(files: Sequence[str]) -> str:
    """Return twelve hexadecimal digits that identify the indexes of token files.

    They are of all bytes of each, or of evenly spread samples where the indexes are large together.
    """
    digest = hashlib.sha256()
    places = max(LEAST_SAMPLES, HASHED_BYTES // SAMPLE_BYTES // len(files))
    for file in files:
        if not megatron.is_megatron(file):
            continue
        content = map_file(megatron.index_of(file))
        digest.update(f"{file.rpartition('/')[2]} {len(content)}\n".encode())
        if len(content) <= places * SAMPLE_BYTES:
            digest.update(content.tobytes())
            continue
        for place in range(places):
            begin = (len(content) - SAMPLE_BYTES) * place // (places - 1)
            digest.update(content[begin : begin + SAMPLE_BYTES].tobytes())
    return digest.hexdigest()[:12]


def uses_dtype(files: Iterable[str], column: str) -> bool:
    """Return whether any file does not name the type of its numbers, so that ``token_dtype`` decides it."""
    for file in files:
        try:
            if _indexed_documents(file, TokenRule(None, 0, 0, 0), column) is None:
                layout_of(file, map_file(file), None)
        except DataError:  # It is read with a type, so it lacks only that.
            return True
    return False


def token_column(file: str, column: str) -> str | None:
    """Return the column of tokens in a file; ``None`` for a format without columns."""
    return mds.MdsFile(file, column, "uint16").column if file.endswith(mds.SUFFIX) else None


def check_indexes(names: Iterable[str], all_names: Iterable[str]) -> None:
    """Check that each ``.bin`` file has an index if its folder has those of other ``.bin`` files.

    Args:
        names: Files that are read.
        all_names: Files of the dataset.

    Raises:
        DataError: An index is missing; the tokens would be read as plain ones, without their documents.
    """
    all_names = set(all_names)
    indexed = {name for name in all_names if name.endswith(megatron.SUFFIX) and megatron.index_of(name) in all_names}
    indexed_by_folder = {PurePosixPath(name).parent: name for name in sorted(indexed)}
    for name in names:
        example = indexed_by_folder.get(PurePosixPath(name).parent)
        if example and name.endswith(megatron.SUFFIX) and name not in indexed:
            raise DataError(
                f"{name} has no {PurePosixPath(megatron.index_of(name)).name} beside it, as {example} has: copy the "
                "index too, or move the file into a folder of its own"
            )


def open_token_file(path: str, size: int, rule: TokenRule, *, column: str) -> SpanReader:
    """Open a file of tokens.

    Raises:
        DataError: The file is unreadable, truncated, or does not say what its numbers are.
    """
    documents = _indexed_documents(path, rule, column)
    return RawReader(path, rule) if documents is None else _IndexedReader(documents, size, rule)


def check_token_file(path: str, size: int, rule: TokenRule, *, column: str, names_end: bool) -> None:
    """Check a file's structure, and the tokens of its first documents.

    Args:
        path: Of the file.
        size: Its bytes.
        rule: Meaning of its numbers.
        column: Column of the tokens in a format that has several.
        names_end: Whether the user named the token that ends a document.

    Raises:
        DataError: As ``open_token_file``; or the tokens are of another vocabulary, or documents end with another token.
    """
    documents = _indexed_documents(path, rule, column)
    if documents is None:
        reader = RawReader(path, rule)
        if wider_dtype := reader.wider_dtype:
            raise DataError(
                f"{path}: nearly every second number of type {rule.dtype} is 0 or 1, as in numbers of type "
                f"{wider_dtype}: set token_dtype to {wider_dtype}"
            )
        if len(reader) and not reader.has_end:
            logger.warning("%s: no token %d ends a document in it (token_end)", path, rule.stored_end)
        (block,) = reader.read(0, min(size, CHECKED_BYTES))
    else:
        block = _IndexedBlock(0, len(documents), documents, rule)
    for index in range(min(len(block), CHECKED_DOCUMENTS)):
        try:
            block.document(index)
        except BadRecordError as error:
            raise DataError(f"{path}:{block.number(index)}: {error}") from error
    if documents is not None and not names_end:
        _check_ends(path, documents, rule)


def _indexed_documents(path: str, rule: TokenRule, column: str) -> Sequence[NDArray[Any]] | None:
    """Return the documents of a format with an index; ``None`` for plain tokens."""
    if path.endswith(mds.SUFFIX):
        return mds.MdsFile(path, column, rule.dtype)
    if megatron.is_megatron(path):
        return megatron.MegatronFile(path)
    return litdata.LitdataFile(path) if litdata.is_litdata(path) else None


def _check_ends(path: str, documents: Sequence[NDArray[Any]], rule: TokenRule) -> None:
    """Refuse documents that all end with one token that is not the EOS token: they would end twice."""
    ends = [int(tokens[-1]) for tokens in islice(documents, CHECKED_DOCUMENTS) if len(tokens)]
    if len(ends) >= LEAST_EQUAL_ENDS and set(ends) == {ends[0]} != {rule.stored_end}:
        raise DataError(
            f"{path}: its first {len(ends)} documents all end with token {ends[0]}, but the tokenizer's EOS token is "
            f"{rule.end}: set token_end to {ends[0]} if that token ends each document there, else to {rule.end}"
        )


class _IndexedReader(RowReader):
    """Documents of a file with an index, a row each."""

    def __init__(self, documents: Sequence[NDArray[Any]], size: int, rule: TokenRule) -> None:
        super().__init__(size)
        self._documents, self._rule = documents, rule

    def read(self, begin: int, end: int) -> Iterator[DocumentBlock]:
        first_row, stop = self._rows_between(begin, end, len(self._documents))
        yield _IndexedBlock(first_row, stop - first_row, self._documents, self._rule)


class _IndexedBlock(DocumentBlock):
    """Some documents in a row of a file with an index."""

    def __init__(self, first_document: int, count: int, documents: Sequence[NDArray[Any]], rule: TokenRule) -> None:
        super().__init__(first_document)
        self._count, self._documents, self._rule = count, documents, rule

    def __len__(self) -> int:
        return self._count

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document; raise ``BadRecordError``."""
        return self._rule.document(self._documents[self.first_document + index])
