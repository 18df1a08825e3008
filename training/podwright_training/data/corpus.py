"""Assign the documents of one source to virtual streams, and order them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.faults import BadRecordError, BadShardError, DataError, Fault, Faults
from podwright_training.data.formats import Document, DocumentBlock, format_of, read_blocks
from podwright_training.data.splits import Split
from podwright_training.data.token_shards import SUFFIX as TOKENS
from podwright_training.data.token_shards import TokenShard
from podwright_training.data.tokenizer import Encoder

TOKENIZE_DOCUMENTS = 16  # one call of the tokenizer; the unit of work a resume may repeat


class Position(NamedTuple):
    """Position of a stream's next token; counts follow the stream's reading order."""

    epoch: int = 0
    shard: int = 0
    block: int = 0
    document: int = 0
    token: int = 0


@dataclass(frozen=True)
class Corpus:
    """Shards of one split, divided into ``streams`` virtual streams.

    Streams own whole shards, every ``streams``-th each. Where there are fewer shards than streams, the n streams of a
    shard take every n-th document each. Each epoch of a stream has its own order of shards, and shuffles the
    documents within blocks.
    """

    name: str
    split: Split
    text_column: str
    streams: int
    seed: int

    def check(self, encoder: Encoder, streams: Iterable[int]) -> None:
        """Check the first block for errors that would stop the first batch, and the shards that ``streams`` read.

        Raises:
            DataError: Tokens are of another tokenizer, or all records of the first block are broken.
        """
        for file in dict.fromkeys(chain.from_iterable(map(self._files_of, streams))):
            if format_of(file) == TOKENS:
                _check_tokenizer(file, encoder)
        try:
            block = next(read_blocks(self.split.files[0], column=self.text_column), None)
        except BadShardError:
            return  # the stream reports it and continues with the next
        if block:
            _check_block(block, self.split.files[0])

    def documents(
        self, stream: int, start: Position, *, encoder: Encoder, faults: Faults
    ) -> Iterator[tuple[Position, NDArray[Any]]]:
        """Yield the documents of ``stream`` without end: position of the first wanted token, and all tokens.

        Raises:
            DataError: A shard is unreadable, too many records or shards are broken, or the stream owns no document.
        """
        first = start._replace(token=0)
        for epoch in count(start.epoch):
            empty = first.epoch != epoch
            for position, tokens in self._tokens(stream, epoch, first, encoder, faults):
                empty = False
                yield (start if position == first else position), tokens
            if empty:
                raise DataError(self._empty(stream, faults))

    def epoch(self, *, encoder: Encoder, faults: Faults) -> Iterator[NDArray[Any]]:
        """Yield every document of the first stream once; raise as ``documents`` does, except when there is none."""
        for _, tokens in self._tokens(0, 0, Position(), encoder, faults):
            yield tokens

    def _tokens(
        self, stream: int, epoch: int, first: Position, encoder: Encoder, faults: Faults
    ) -> Iterator[tuple[Position, NDArray[Any]]]:
        documents = self._documents(stream, epoch, first, faults)
        while batch := list(islice(documents, TOKENIZE_DOCUMENTS)):
            texts = [document for _, document in batch if isinstance(document, str)]
            encoded = encoder.encode(texts) if texts else iter(())
            for position, document in batch:
                yield position, next(encoded) if isinstance(document, str) else document

    def _documents(
        self, stream: int, epoch: int, first: Position, faults: Faults
    ) -> Iterator[tuple[Position, Document]]:
        for position, block, index, place in self._places(stream, epoch, first, faults):
            try:
                document = block.document(index)
            except BadRecordError as error:
                faults.add(Fault("record", place, str(error)))
                continue
            if self.split.has(document):
                yield position, document

    def _places(
        self, stream: int, epoch: int, first: Position, faults: Faults
    ) -> Iterator[tuple[Position, DocumentBlock, int, str]]:
        """Yield the location of each document of ``stream``, in the order of ``epoch``, from ``first`` on."""
        for shard, file in enumerate(self._shards_of(stream, epoch)):
            if (epoch, shard) < (first.epoch, first.shard):
                continue
            begun = (epoch, shard) == (first.epoch, first.shard)
            start = first.block if begun else 0
            try:
                for number, block in enumerate(read_blocks(file, column=self.text_column, start=start), start):
                    order = self._order(stream, epoch, shard, number, len(block))
                    skipped = first.document if begun and number == first.block else 0
                    for document, index in enumerate(order[skipped:], skipped):
                        place = f"{file}:{block.number(index)}"
                        yield Position(epoch, shard, number, document), block, index, place
            except BadShardError as error:
                faults.add(Fault("shard", file, str(error)))

    def _shards_of(self, stream: int, epoch: int) -> list[str]:
        """Return the shards that ``stream`` reads, in the order of ``epoch``."""
        files = self._files_of(stream)
        return [files[index] for index in np.random.default_rng([self.seed, stream, epoch]).permutation(len(files))]

    def _files_of(self, stream: int) -> tuple[str, ...]:
        return self.split.files[stream % len(self.split.files) :: self.streams]

    def _order(self, stream: int, epoch: int, shard: int, block: int, documents: int) -> list[int]:
        """Return the shuffled indices of the block's documents that ``stream`` owns."""
        shards = len(self.split.files)
        sharers = len(range(stream % shards, self.streams, shards))
        own = np.arange((stream // shards - block) % sharers, documents, sharers)  # small blocks: each its turn
        order: list[int] = np.random.default_rng([self.seed, stream, epoch, shard, block]).permutation(own).tolist()
        return order

    def _empty(self, stream: int, faults: Faults) -> str:
        who = f"data stream {stream} of {self.streams} (data_streams)"
        where = f"in {len(self.split.files)} shards ({self.split.files[0]} …)"
        if faults.found:
            last = next(reversed(faults.found.values()))
            broken = f"{faults.count('shard')} broken shards and {faults.count('record')} broken records"
            return f"{who} has no intact document {where}: {broken}, the last one {last.place}: {last.reason}"
        share = "" if self.split.held_out is None else ", of which validation is held out"
        return (
            f"the data is too small for data_streams {self.streams}: stream {stream} has no document {where}{share}; "
            "use fewer streams, or more files"
        )


def _check_tokenizer(file: str, encoder: Encoder) -> None:
    try:
        with closing(TokenShard(file)) as shard:
            there = shard.tokenizer
    except BadShardError:
        return  # the stream reports it and continues with the next
    if there != encoder.digest:
        raise DataError(f"{file} holds tokens of another tokenizer ({there}) than this one ({encoder.digest})")


def _check_block(block: DocumentBlock, file: str) -> None:
    problem: BadRecordError | None = None
    for index in range(len(block)):
        try:
            block.document(index)
        except BadRecordError as error:
            problem = error
        else:
            return
    if problem is None:
        return  # blank lines
    raise DataError(f"{file}: each of its first {len(block)} records is broken, the last one: {problem}")
