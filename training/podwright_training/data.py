"""Text in C4's layout → tokens → packed sequences, in one global order that no world size changes.

The data is cut into *virtual streams* whose number is fixed for a run. Stream ``s`` owns documents by a fixed rule and
packs them on its own; global sequence ``g`` is the next one of stream ``g % streams``. Ranks only divide the streams
among themselves, so the content of every global batch depends on nothing but its size, and a position is five small
integers per stream.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset
from huggingface_hub import HfFileSystem
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from podwright_training.config import UserError

logger = logging.getLogger(__name__)

BLOCK_LINES = 1024  # documents are shuffled within blocks of this many lines
TOKENIZE_DOCUMENTS = 16  # one call of the tokenizer; the unit of work a resume may repeat
MAX_BAD_RECORDS = 100  # different ones per rank; beyond that the data, not a record, is broken


class DataError(UserError):
    """The dataset or tokenizer cannot be used; the message names the file or identifier and what was expected."""


class PackedStream:
    """Batches of packed token sequences for one rank.

    Documents are tokenised without special tokens, each followed by the tokenizer's end-of-text token, concatenated and
    cut into sequences of ``context_width + 1`` tokens (inputs and targets: the sequence without its last and its first
    token). Epochs follow each other without end; each has another order of shards and of documents within blocks.

    Args:
        dataset: Identifier on the Hugging Face hub, or a local folder, with files ``c4-<split>.*.json.gz``.
        dataset_config_name: The folder of these files in the dataset, ``en`` for English C4; ``None`` for its root.
        split: ``train`` or ``validation``.
        tokenizer: A tokenizer, or what ``load_tokenizer`` takes.
        context_width: Tokens the model sees.
        rank: This process.
        world_size: All processes; must divide ``streams``.
        local_batch_size: Sequences per rank and batch.
        streams: Virtual streams, the same number over the whole life of a run.

    Raises:
        DataError: No such dataset, no shards, or a tokenizer without an end-of-text token.
        ValueError: ``world_size`` does not divide ``streams``.
    """

    def __init__(
        self,
        *,
        dataset: str,
        dataset_config_name: str | None,
        split: str,
        tokenizer: str | PreTrainedTokenizerBase,
        context_width: int,
        rank: int,
        world_size: int,
        local_batch_size: int,
        streams: int,
    ) -> None:
        if streams % world_size:
            allowed = ", ".join(str(size) for size in range(1, streams + 1) if streams % size == 0)
            raise ValueError(
                f"{streams} data streams cannot be divided among {world_size} ranks; allowed world sizes: {allowed}"
            )
        self._corpus = _Corpus(
            files=find_shards(dataset, dataset_config_name, split),
            tokenizer=load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer,
            streams=streams,
        )
        self._streams = {
            stream: _Stream(self._corpus, stream, Position()) for stream in range(rank, streams, world_size)
        }
        self._rank = rank
        self._world_size = world_size
        self._shape = (local_batch_size, context_width + 1)
        self._sequences = 0  # drawn by all ranks together

    def next_batch(self) -> torch.Tensor:
        """This rank's share of the next global batch, int64 of shape ``[local_batch_size, context_width + 1]``.

        Raises:
            DataError: A shard cannot be read, too many records are broken, or a stream owns no document.
        """
        batch = np.empty(self._shape, dtype=np.int64)
        first = self._sequences + (self._rank - self._sequences) % self._world_size
        for row, sequence in zip(batch, count(first, self._world_size)):
            self._streams[sequence % self._corpus.streams].fill(row)
        self._sequences += len(batch) * self._world_size
        return torch.from_numpy(batch)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able position of this rank; what a checkpoint keeps is ``merge_states`` of all ranks'."""
        return {
            "sequences": self._sequences,
            "stream_count": self._corpus.streams,
            "shard_count": len(self._corpus.files),
            "streams": {str(stream): list(astuple(each.position)) for stream, each in self._streams.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly after the last sequence of ``state``, which may come from another world size.

        Raises:
            ValueError: The state lacks a stream of this rank, or belongs to other data or another number of streams.
        """
        here = {"stream_count": self._corpus.streams, "shard_count": len(self._corpus.files)}
        problems = [f"{key} is {state[key]} there, {value} here" for key, value in here.items() if state[key] != value]
        problems += [f"it lacks stream {stream}" for stream in self._streams if str(stream) not in state["streams"]]
        if problems:
            raise ValueError(f"this data position cannot be continued: {'; '.join(problems)}")
        self._sequences = state["sequences"]
        for stream in self._streams:
            self._streams[stream] = _Stream(self._corpus, stream, Position(*state["streams"][str(stream)]))


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of all ranks' states, for a checkpoint; raises ``ValueError`` if they are not of the same moment."""
    merged = {**states[0], "streams": {}}
    for rank, state in enumerate(states):
        differing = [key for key in merged if key != "streams" and state[key] != merged[key]]
        if differing:
            raise ValueError(f"the data positions of ranks 0 and {rank} differ in {', '.join(differing)}")
        merged["streams"] |= state["streams"]
    return merged


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer in the local folder ``name``, or of that identifier on the Hugging Face hub.

    Raises:
        DataError: There is none, or it cannot be reached.
    """
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise DataError(
            f"tokenizer {name!r}: neither a folder with tokenizer.json nor an identifier that the Hugging Face hub "
            f"gives to this machine ({_first_line(error)})"
        ) from error


def find_shards(dataset: str, dataset_config_name: str | None, split: str) -> list[str]:
    """The shards of one split, sorted by name.

    Raises:
        DataError: No such dataset, or no shard of that split in it.
    """
    pattern = "/".join(filter(None, (dataset_config_name, f"c4-{split}.*.json.gz")))
    if Path(dataset).is_dir():
        files = sorted(str(path) for path in Path(dataset).glob(pattern))
    elif Path(dataset).is_absolute() or dataset.startswith(".") or dataset.count("/") != 1:
        raise DataError(f"dataset {dataset!r}: neither an existing folder nor an identifier of the form owner/name")
    else:
        files = _find_on_hub(dataset, pattern)
    if not files:
        raise DataError(f"dataset {dataset!r} has no file {pattern}")
    return files


def _find_on_hub(dataset: str, pattern: str) -> list[str]:
    try:
        return sorted(f"hf://{path}" for path in HfFileSystem().glob(f"datasets/{dataset}/{pattern}"))
    except OSError as error:  # the hub's and the network's errors derive from it
        raise DataError(
            f"dataset {dataset!r}: no folder of that name here, and the Hugging Face hub does not give it to this "
            f"machine ({_first_line(error)})"
        ) from error


@dataclass(frozen=True, order=True)
class Position:
    """The next token of a stream; every count is in the order in which the stream reads."""

    epoch: int = 0
    shard: int = 0
    block: int = 0
    document: int = 0
    token: int = 0


class _Stream:
    """One virtual stream: the tokens of its documents, one after the other, from a position on."""

    def __init__(self, corpus: _Corpus, stream: int, position: Position) -> None:
        self.position = position
        self._tokens: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # of the document at position, once read
        self._documents = corpus.documents(stream, position)

    def fill(self, row: NDArray[np.int64]) -> None:
        """Write the next ``len(row)`` tokens into ``row``."""
        filled = 0
        while filled < len(row):
            start = self.position.token
            piece = self._tokens[start : start + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
            self.position = replace(self.position, token=start + len(piece))
            if not len(piece):
                self.position, self._tokens = next(self._documents)


class _Corpus:
    """The shards of one split, the rule by which streams own their documents, and the order of reading."""

    def __init__(self, *, files: list[str], tokenizer: PreTrainedTokenizerBase, streams: int) -> None:
        if tokenizer.eos_token_id is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no end-of-text token (eos_token) to put between documents"
            )
        self.files = files
        self.streams = streams
        self._tokenizer = tokenizer
        self._bad_records: set[str] = set()

    def documents(self, stream: int, start: Position) -> Iterator[tuple[Position, NDArray[np.int64]]]:
        """Endless documents of ``stream``: the position of the first wanted token, and all tokens."""
        texts = self._texts(stream, start)
        while batch := list(islice(texts, TOKENIZE_DOCUMENTS)):
            for (position, _), tokens in zip(batch, self._encode([text for _, text in batch]), strict=True):
                yield (start if position == replace(start, token=0) else position), tokens

    def _texts(self, stream: int, start: Position) -> Iterator[tuple[Position, str]]:
        first = replace(start, token=0)
        for epoch in count(start.epoch):
            empty = first.epoch != epoch
            for position, line, place in self._lines(stream, epoch, first):
                if position >= first and (text := self._parse(line, place)) is not None:
                    empty = False
                    yield position, text
            if empty:
                raise DataError(
                    f"data stream {stream} of {self.streams} has no document in {len(self.files)} shards "
                    f"({self.files[0]} …): the data is too small for so many streams"
                )

    def _lines(self, stream: int, epoch: int, first: Position) -> Iterator[tuple[Position, str, str]]:
        """The lines ``stream`` owns in the order of ``epoch``, from the block of ``first`` on, each with its place."""
        for shard, file in enumerate(self._shards_of(stream, epoch)):
            if (epoch, shard) < (first.epoch, first.shard):
                continue
            for block, lines in enumerate(_read_blocks(file)):
                if (epoch, shard, block) < (first.epoch, first.shard, first.block):
                    continue
                for document, index in enumerate(self._order(stream, epoch, shard, block, len(lines))):
                    number = block * BLOCK_LINES + index + 1
                    yield Position(epoch, shard, block, document), lines[index].as_py(), f"{file}:{number}"

    def _shards_of(self, stream: int, epoch: int) -> list[str]:
        """The shards ``stream`` reads, in the order of ``epoch``: every ``streams``-th, or one that it shares."""
        files = self.files[stream % len(self.files) :: self.streams]
        return [files[index] for index in np.random.default_rng([stream, epoch]).permutation(len(files))]

    def _order(self, stream: int, epoch: int, shard: int, block: int, line_count: int) -> list[int]:
        """Indices of the lines of one block that ``stream`` owns, shuffled.

        Where there are fewer shards than streams, the n streams of a shard take every n-th line each.
        """
        shards = len(self.files)
        sharers = len(range(stream % shards, self.streams, shards))
        first_line = block * BLOCK_LINES
        own = np.arange((stream // shards - first_line) % sharers, line_count, sharers)
        order: list[int] = np.random.default_rng([stream, epoch, shard, block]).permutation(own).tolist()
        return order

    def _parse(self, line: str, place: str) -> str | None:
        """The text on one line; ``None`` for a broken record, which is named and counted."""
        try:
            record = json.loads(line)
        except ValueError as error:
            self._refuse(place, f"not JSON ({error})")
            return None
        text = record.get("text") if isinstance(record, dict) else None
        if isinstance(text, str) and text:
            return text
        self._refuse(place, 'no "text"')
        return None

    def _refuse(self, place: str, reason: str) -> None:
        if place in self._bad_records:  # met again in another epoch
            return
        self._bad_records.add(place)
        logger.warning("%s: %s; skipped, broken record %d of this rank", place, reason, len(self._bad_records))
        if len(self._bad_records) > MAX_BAD_RECORDS:
            raise DataError(f"more than {MAX_BAD_RECORDS} broken records, the last one {place}: {reason}")

    def _encode(self, texts: list[str]) -> Iterator[NDArray[np.int64]]:
        encoded = self._tokenizer(
            texts,
            add_special_tokens=False,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # a document longer than the model's context is no mistake here
        )
        for tokens in encoded["input_ids"]:
            yield np.array([*tokens, self._tokenizer.eos_token_id], dtype=np.int64)


def _read_blocks(file: str) -> Iterator[Any]:
    """Blocks of ``BLOCK_LINES`` lines of a shard as Arrow columns, local or streamed from the hub."""
    try:
        # Not load_dataset: it reports every use to the hub first, and waits for minutes where there is no way out.
        lines = IterableDataset.from_text(file, encoding_errors="replace")
        for table in lines.with_format("arrow").iter(batch_size=BLOCK_LINES):
            yield table.column("text")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read to its end: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
