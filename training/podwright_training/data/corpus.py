"""Read the documents of one source that a virtual stream owns, in the order of each epoch.

Before a run, each rank checks only its share of the token shards: if each checked all, the work of a start would grow
with the square of the ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, islice
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import BadRecordError, BadShardError, DataError, EmptyTextError, Fault, Faults
from podwright_training.data.formats import (
    FOREIGN_TOKENS,
    Document,
    DocumentBlock,
    format_of,
    read_blocks,
    refuse_array,
    shard_errors,
)
from podwright_training.data.order import ReadingOrder, Span
from podwright_training.data.span_reader import SpanReader
from podwright_training.data.spans import DIVISIBLE, check_tokenizer, open_spans
from podwright_training.data.splits import Split
from podwright_training.data.storage import Listing, shared
from podwright_training.data.token_files import check_token_file, indexes_digest, token_column, uses_dtype
from podwright_training.data.token_rule import TokenRule
from podwright_training.data.token_shards import SUFFIX as TOKENS
from podwright_training.data.token_shards import TokenShard
from podwright_training.data.tokenizer import Encoder

TOKENIZE_DOCUMENTS = 16  # one call of the tokenizer; the unit of work a resume may repeat
SAMPLED_DOCUMENTS = 64  # tokenized to estimate an epoch's tokens


class DataPosition(NamedTuple):
    """DataPosition of a stream's next token; counts follow the stream's reading order."""

    epoch: int = 0
    window: int = 0
    document: int = 0
    documents: int = 0  # documents in the window; 0 at the beginning of an epoch
    token: int = 0


@dataclass(frozen=True)
class Corpus:
    """Documents of one split, divided evenly among ``streams`` virtual streams: see ``order``.

    Attributes:
        name: Of the source.
        split: Its shards.
        text_column: Column that holds the text.
        streams: Of the run.
        seed: Of the order.
        max_epochs: How often the documents are read; ``None``: without end.
        token_dtype: Type of the numbers in token files that do not name it.
        token_end: Token that ends a document in files of other programs; ``None``: the EOS token.
        shuffle: Whether documents are read in random order.
    """

    name: str
    split: Split
    text_column: str
    streams: int
    seed: int
    max_epochs: int | None = None
    token_dtype: str | None = None
    token_end: int | None = None
    shuffle: bool = True

    @cached_property
    def order(self) -> ReadingOrder:
        """Return which bytes each stream reads."""
        divisible = tuple(format_of(file) in DIVISIBLE for file in self.split.files)
        return ReadingOrder(self.split.sizes, divisible, self.streams, self.seed, self.shuffle)

    def check(self, encoder: Encoder, *, rank: int, world_size: int) -> None:
        """Check the first block for errors that would stop the first batch, and a rank's share of the shards.

        Raises:
            DataError: Tokens are of another tokenizer, a file is a JSON array, or all records of the first block are
                broken.
        """
        files = list(zip(self.split.files, self.split.sizes, strict=True))
        for file, size in files[rank::world_size]:
            if format_of(file) == TOKENS:
                _check_shard(file, encoder)
            elif format_of(file) in FOREIGN_TOKENS:
                check_token_file(
                    file,
                    size,
                    self.token_rule(encoder),
                    column=self.text_column,
                    names_end=self.token_end is not None,
                )
            else:
                _check_beginning(file)
        if format_of(self.split.files[0]) in FOREIGN_TOKENS:
            return
        try:
            block = next(read_blocks(self.split.files[0], column=self.text_column), None)
        except BadShardError:
            return  # the stream reports it and continues with the next
        if block:
            self._check_block(block)

    def _check_block(self, block: DocumentBlock) -> None:
        """Check the first block; name the files that are left out, as they may be the data that was meant."""
        try:
            _check_block(block, self.split.files[0])
        except DataError as error:
            if not self.split.unread_files:
                raise
            raise DataError(
                f"{error}; left out: {self.split.unread_files}; if those are the data, move the others elsewhere"
            ) from error

    def token_rule(self, encoder: Encoder) -> TokenRule:
        """Return the meaning of the numbers in token files of other programs."""
        stored_end = encoder.end if self.token_end is None else self.token_end
        return TokenRule(self.token_dtype, stored_end, encoder.end, encoder.vocabulary_size)

    def token_file_identity(self, encoder: Encoder) -> dict[str, Any] | None:
        """Return how token files of other programs are read, as JSON values; ``None`` where there are none."""
        if format_of(self.split.files[0]) not in FOREIGN_TOKENS:
            return None
        rule = self.token_rule(encoder)
        facts = self._token_file_facts
        dtype = {"token_dtype": rule.dtype} if facts["uses_dtype"] else {}
        return {**dtype, "token_end": rule.stored_end, "indexes": facts["indexes"]}

    @property
    def column(self) -> str | None:
        """Return the column that is read; ``None`` for token files without columns."""
        kind = format_of(self.split.files[0])
        if kind in FOREIGN_TOKENS:
            return self._token_file_facts["column"] or None
        return None if kind == TOKENS else self.text_column

    @cached_property
    def _token_file_facts(self) -> Listing:
        """Return what token files of other programs say about themselves; the first rank reads it for all ranks."""
        return shared(f"token files of {self.split.files[0]} and {self.split.digest}", self._read_token_file_facts)

    def _read_token_file_facts(self) -> Listing:
        files = self.split.files
        return {
            "indexes": indexes_digest(files),
            "uses_dtype": "yes" if uses_dtype(files, self.text_column) else "",
            "column": token_column(files[0], self.text_column) or "",
        }

    def documents(
        self, stream: int, start: DataPosition, *, encoder: Encoder, faults: Faults
    ) -> Iterator[tuple[DataPosition, NDArray[Any]]]:
        """Yield the documents of ``stream`` up to ``max_epochs``: position of the first token to read, and all tokens.

        A stream of less data than streams may have no document in an epoch, and one in the next.

        Raises:
            DataError: A shard is unreadable, too many records or shards are broken, or the source has no document.
        """
        token, is_checked = start.token, False
        for epoch in count(start.epoch) if self.max_epochs is None else range(start.epoch, self.max_epochs):
            epoch_start = start if epoch == start.epoch else DataPosition(epoch)
            is_empty = True
            for position, tokens in self._tokens(stream, epoch_start, encoder, faults):
                is_empty = False
                yield position._replace(token=token), tokens
                token = 0
            if is_empty and not is_checked:
                self._require_document(encoder, faults)
                is_checked = True

    def epoch(self, *, encoder: Encoder, faults: Faults) -> Iterator[NDArray[Any]]:
        """Yield every document of the first stream once; raise as ``documents`` does, except when there is none."""
        for _, tokens in self._tokens(0, DataPosition(), encoder, faults):
            yield tokens

    def epochs_read(self, stream: int, position: DataPosition) -> float:
        """Return how often a stream has read its part at a position."""
        within = position.document / position.documents if position.documents else 0.0
        return position.epoch + (position.window + within) / max(1, self.order.windows(stream, position.epoch))

    def tokens_per_epoch(self, encoder: Encoder, faults: Faults) -> float:
        """Return about how many tokens all documents have, from those that the first streams read first."""
        tokens, documents, parts = 0, 0, 0.0
        for stream in range(self.streams):
            sample = list(islice(self._documents(stream, DataPosition(), encoder, faults), SAMPLED_DOCUMENTS))
            texts = [document for _, document in sample if isinstance(document, str)]
            tokens += sum(len(document) for _, document in sample if not isinstance(document, str))
            tokens += sum(map(len, encoder.encode(texts))) if texts else 0
            documents += len(sample)
            if len(sample) == SAMPLED_DOCUMENTS:
                last_position, _ = sample[-1]
                parts += self.epochs_read(stream, last_position._replace(document=last_position.document + 1))
            else:
                parts += 1  # the whole part of this stream
            if documents >= SAMPLED_DOCUMENTS:
                break
        return tokens * self.streams / parts

    def _tokens(
        self, stream: int, start: DataPosition, encoder: Encoder, faults: Faults
    ) -> Iterator[tuple[DataPosition, NDArray[Any]]]:
        documents = self._documents(stream, start, encoder, faults)
        while read_documents := list(islice(documents, TOKENIZE_DOCUMENTS)):
            texts = [document for _, document in read_documents if isinstance(document, str)]
            encoded = encoder.encode(texts) if texts else iter(())
            for position, document in read_documents:
                yield position, next(encoded) if isinstance(document, str) else document

    def _documents(
        self, stream: int, start: DataPosition, encoder: Encoder, faults: Faults
    ) -> Iterator[tuple[DataPosition, Document]]:
        """Yield the documents of ``stream`` from position ``start`` to the end of its epoch."""
        with closing(_Shards(self, encoder)) as shards:
            for window in range(start.window, self.order.windows(stream, start.epoch)):
                blocks = list(shards.read(self.order.spans(stream, start.epoch, window), faults))
                ends = list(accumulate(len(block) for _, block in blocks))
                documents = ends[-1] if ends else 0
                dice = np.random.default_rng([self.seed, stream, start.epoch, window])
                shuffled: list[int] = dice.permutation(documents).tolist() if self.shuffle else list(range(documents))
                for number in range(start.document if window == start.window else 0, documents):
                    place = bisect_right(ends, shuffled[number])
                    file, block = blocks[place]
                    document = _read(file, block, shuffled[number] - (ends[place] - len(block)), faults)
                    if self._is_read(document):
                        yield DataPosition(start.epoch, window, number, documents), document

    def _is_read(self, document: Document | None) -> TypeGuard[Document]:
        """Return whether a document is intact, in this split and has any token, as packing waits for tokens."""
        return document is not None and len(document) > 0 and self.split.has(document)

    def _require_document(self, encoder: Encoder, faults: Faults) -> None:
        """Raise ``DataError`` if the source has no document at all."""
        step = self.order.window_bytes
        spans = (
            Span(file, begin, min(size, begin + step))
            for file, size in enumerate(self.split.sizes)
            for begin in range(0, size, step)
        )
        with closing(_Shards(self, encoder)) as shards:
            for path, block in shards.read(spans, faults):
                documents = (_read(path, block, index, faults) for index in range(len(block)))
                if any(map(self._is_read, documents)):
                    return
        raise DataError(self._empty(faults))

    def _empty(self, faults: Faults) -> str:
        source, shards_text = f"data source {self.name}", f"in {len(self.split.files)} shards ({self.split.files[0]} …)"
        if faults.fault_by_place:
            newest = next(reversed(faults.fault_by_place.values()))
            broken = f"{faults.count('shard')} broken shards and {faults.count('record')} broken records"
            return (
                f"{source} has no intact document {shards_text}: {broken}, the last one {newest.place}: {newest.reason}"
            )
        if self.split.held_out is None:
            return f"{source} has no document {shards_text}"
        part = "validation" if self.split.held_out else "training"
        return (
            f"{source} has no document for {part} {shards_text}, as a hundredth of them, by their text, is held out "
            "for validation; add documents, or files for validation, such as validation.jsonl"
        )


class _Shards:
    """Shards of a corpus that one stream reads, the last one open."""

    def __init__(self, corpus: Corpus, encoder: Encoder) -> None:
        self._corpus = corpus
        self._encoder = encoder
        self._file = -1
        self._reader: SpanReader | None = None

    def read(self, spans: Iterable[Span], faults: Faults) -> Iterator[tuple[str, DocumentBlock]]:
        """Yield the blocks of documents that begin in spans, each with its file; behind a damage a file has none."""
        for span in spans:
            path = self._corpus.split.files[span.file]
            try:
                with shard_errors(path):
                    for block in self._open(span.file, path).read(span.begin, span.end):
                        yield path, block
            except BadShardError as error:
                faults.add(Fault("shard", path, str(error)))

    def close(self) -> None:
        """Close the open shard."""
        if self._reader:
            self._reader.close()
        self._reader, self._file = None, -1

    def _open(self, file: int, path: str) -> SpanReader:
        if self._reader is None or self._file != file:
            self.close()
            corpus = self._corpus
            self._reader = open_spans(
                path,
                corpus.split.sizes[file],
                column=corpus.text_column,
                tokenizer=self._encoder.digest,
                token_rule=corpus.token_rule(self._encoder),
            )
            self._file = file
        return self._reader


def _read(file: str, block: DocumentBlock, index: int, faults: Faults) -> Document | None:
    """Return a document; count it as a fault if it is broken."""
    try:
        return block.document(index)
    except EmptyTextError:
        faults.empty_texts += 1
        return None
    except BadRecordError as error:
        faults.add(Fault("record", f"{file}:{block.number(index)}", str(error)))
        return None


def _check_shard(file: str, encoder: Encoder) -> None:
    try:
        with closing(TokenShard(file)) as shard:
            if shard.tokenizer == encoder.toggled_digest:
                without_or_with = ("without", "with") if encoder.add_bos else ("with", "without")
                raise DataError(
                    f"{file} holds tokens {without_or_with[0]} BOS, but this run is {without_or_with[1]} add_bos: "
                    f"set add_bos to {str(not encoder.add_bos).lower()}, or tokenize again"
                )
            check_tokenizer(file, shard, encoder.digest)
    except BadShardError:
        return  # the stream reports it and continues with the next


def _check_beginning(file: str) -> None:
    try:
        refuse_array(file)
    except BadShardError:
        return  # the stream reports it and continues with the next


def _check_block(block: DocumentBlock, file: str) -> None:
    problem: BadRecordError | None = None
    for index in range(len(block)):
        try:
            block.document(index)
        except EmptyTextError:
            return
        except BadRecordError as error:
            problem = error
        else:
            return
    if problem is None:
        return  # blank lines
    raise DataError(f"{file}: each of its first {len(block)} records is broken, the last one: {problem}")
