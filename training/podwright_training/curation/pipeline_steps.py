"""Define our steps of datatrove's pipelines: read any dataset, write token shards."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import regex
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.word_tokenizers import WordTokenizer, simple_span_tokenize
from numpy.typing import NDArray

from podwright_common.checksum import sha256_of
from podwright_training.curation.languages import UNSPACED
from podwright_training.data.bad_data import BadRecordError, BadShardError, EmptyTextError, Fault, Faults
from podwright_training.data.formats import read_blocks
from podwright_training.data.held_out import is_held_out
from podwright_training.data.splits import Split
from podwright_training.data.token_shards import SUFFIX, write_token_shard
from podwright_training.data.tokenizer import Encoder, load_tokenizer
from podwright_training.run_folder import write_atomically
from podwright_training.run_variables import read_variables

SHARD_TOKENS = 2**26  # A task holds one file in memory, at most 256 MB.
ENCODE_DOCUMENTS = 64  # one call of the tokenizer
WORD = regex.compile(  # In scripts without spaces, each character counts as a word.
    rf"(?V1)[{UNSPACED}]\p{{M}}*|[\w--[{UNSPACED}]]+(?:['’\-][\w--[{UNSPACED}]]+)*|[^\w\s]+"  # noqa: RUF001 -- an apostrophe
)
SENTENCE_END = regex.compile(r"(?V1)(?<=[.!?])\s+|(?<=[。！？])\s*")  # noqa: RUF001 -- those of Chinese and Japanese


class Words(WordTokenizer):  # type: ignore[misc]  # datatrove has no types, as in the classes below
    """Cut text of any language into words, without a package or model per language."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return words, and the punctuation between them."""
        words: list[str] = WORD.findall(text)
        return words

    def sent_tokenize(self, text: str) -> list[str]:
        """Return sentences."""
        return [sentence for sentence in SENTENCE_END.split(text) if sentence.strip()]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return the beginning and end of each sentence."""
        return list(simple_span_tokenize(text, self.sent_tokenize(text)))


class ReadDataset(PipelineStep):  # type: ignore[misc]
    """Read this task's files: every ``world_size``-th one, in any format and store that training reads."""

    type = "📖 - READER"
    name = "dataset"

    def __init__(
        self,
        split: Split,
        folder: Path,
        *,
        text_column: str,
        max_bad_records: int,
        max_bad_shards: int,
        secrets: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.split, self.folder, self.text_column = split, folder, text_column
        self.limits = (max_bad_records, max_bad_shards)
        self.secrets = secrets

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Yield the documents; record broken ones in ``<folder>/<rank>.json``."""
        del data
        os.environ |= read_variables({}, self.secrets)  # a task is one process
        faults = Faults(*self.limits)
        names = self.split.names[rank::world_size]
        for name, file in zip(names, self.split.files[rank::world_size], strict=True):
            self.stat_update("files")
            for number, text in self._texts(file, faults):
                document = Document(text=text, id=f"{name}:{number}")
                self.stat_update("documents")
                yield document
        named_faults = [fault._asdict() for fault in faults.fault_by_place.values()]
        write_atomically(self.folder / f"{rank:05d}.json", json.dumps(named_faults, indent=1) + "\n")

    def _texts(self, file: str, faults: Faults) -> Iterator[tuple[int | str, str]]:
        try:
            for block in read_blocks(file, column=self.text_column):
                for index in range(len(block)):
                    number = block.number(index)
                    try:
                        document = block.document(index)
                    except EmptyTextError:
                        self.stat_update("empty texts")
                        continue
                    except BadRecordError as error:
                        faults.log(Fault("record", f"{file}:{number}", str(error)))
                        continue
                    yield number, str(document)
        except BadShardError as error:
            faults.log(Fault("shard", file, str(error)))


class WriteTokens(PipelineStep):  # type: ignore[misc]
    """Write documents as token shards, and hold out a share of them for validation, by their text."""

    type = "💽 - WRITER"
    name = "tokens"

    def __init__(
        self,
        output: Path,
        folder: Path,
        *,
        tokenizer: str,
        add_bos: bool,
        validation_fraction: float,
        secrets: Mapping[str, str],
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        super().__init__()
        self.output, self.folder, self.tokenizer, self.shard_tokens = output, folder, tokenizer, shard_tokens
        self.validation_fraction, self.secrets = validation_fraction, secrets
        self.add_bos = add_bos

    def run(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> None:
        """Write ``<split>-<rank>-<part>.safetensors``, and describe them in ``<folder>/<rank>.json``."""
        del world_size
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a task is one process
        os.environ |= read_variables({}, self.secrets)
        encoder = Encoder(load_tokenizer(self.tokenizer), add_bos=self.add_bos)
        waiting: dict[str, list[NDArray[Any]]] = {"train": [], "validation": []}
        tokens: Counter[str] = Counter()
        shards: list[dict[str, Any]] = []

        def write(split: str) -> None:
            part = sum(shard["split"] == split for shard in shards)
            path = self.output / f"{split}-{rank:05d}-{part:05d}{SUFFIX}"
            write_token_shard(path, waiting[split], tokenizer=encoder.digest)
            described = {"name": path.name, "split": split, "documents": len(waiting[split]), "tokens": tokens[split]}
            shards.append({**described, "bytes": path.stat().st_size, "sha256": sha256_of(path)})
            waiting[split], tokens[split] = [], 0

        documents = iter(data)
        while some := [document.text for document in islice(documents, ENCODE_DOCUMENTS)]:
            with self.track_time("batch"):
                for text, ids in zip(some, encoder.encode(some), strict=True):
                    split = "validation" if is_held_out(text.encode(), self.validation_fraction) else "train"
                    waiting[split].append(ids)
                    tokens[split] += len(ids)
                    if tokens[split] >= self.shard_tokens:
                        write(split)
        for split, unwritten in waiting.items():
            if unwritten:
                write(split)
        write_atomically(self.folder / f"{rank:05d}.json", json.dumps(shards, indent=1) + "\n")
