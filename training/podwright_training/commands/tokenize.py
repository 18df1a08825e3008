"""``podwright-train tokenize``: convert a dataset to token shards, which training memory-maps instead of tokenizing.

One shard of tokens per shard of text and split. Shards are written to ``<output>.partial/dataset``, which is renamed to
``<output>`` when complete: an interrupted command continues where it stopped, if data and settings are the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.config.sections.data_options import TOKEN_DTYPES
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError, Faults
from podwright_training.errors import ConfigError
from podwright_training.json_values import SPREAD
from podwright_training.run_folder import commit_folder, place_of
from podwright_training.run_variables import add_secrets_flag
from podwright_training.spelling import command_line, flag
from podwright_training.work_folder import begin, work_folder
from podwright_training.worker_pool import run_all

if TYPE_CHECKING:  # numpy and pyarrow, which --help does without
    from podwright_training.data.corpus import Corpus
    from podwright_training.data.splits import Split
    from podwright_training.data.tokenizer import Encoder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train tokenize``; those named as the trainer's have the same meaning."""
    defaults = TrainConfig()
    for name in ("dataset", "dataset_config_name", "text_column", "tokenizer"):
        parser.add_argument(
            flag(name), default=getattr(defaults, name), help=f"same as train's. Default: {getattr(defaults, name)}"
        )
    parser.add_argument(
        "--token-dtype",
        choices=TOKEN_DTYPES,
        metavar="TYPE",
        help=f"same as train's, for a dataset of token files: {', '.join(TOKEN_DTYPES)}",
    )
    parser.add_argument("--token-end", type=int, help="same as train's, for a dataset of token files")
    parser.add_argument(
        "--add-bos", action=argparse.BooleanOptionalAction, default=defaults.add_bos, help="same as train's"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to create, for train's --dataset")
    parser.add_argument(
        "--data-workers", type=int, default=os.cpu_count(), help="worker processes. Default: one per CPU"
    )
    parser.add_argument(
        "--max-bad-records", type=int, default=defaults.max_bad_records, help="broken records to skip per shard"
    )
    add_secrets_flag(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the shards and print a summary; return the exit status."""
    limits = (("data_workers", args.data_workers, 1), ("max_bad_records", args.max_bad_records, 0))
    if problems := [
        f"{name}: got {value}, need at least {minimum}" for name, value, minimum in limits if value < minimum
    ]:
        raise ConfigError(problems)
    folder = None if args.dataset_config_name.lower() == "none" else args.dataset_config_name
    written = tokenize(
        args.dataset,
        args.output,
        dataset_config_name=folder,
        text_column=args.text_column,
        token_dtype=args.token_dtype,
        token_end=args.token_end,
        tokenizer=args.tokenizer,
        add_bos=args.add_bos,
        workers=args.data_workers,
        max_bad_records=args.max_bad_records,
    )
    text = (
        f"{args.output}: {sum(map(sum, written.documents)):,} documents, {written.tokens:,} tokens; "
        f"{written.bad_records} broken records skipped\n"
    )
    if all(map(sum, written.documents)):
        text += train_on_shards(
            args.output,
            args.tokenizer,
            vocab_size=written.vocabulary,
            documents=written.documents,
            add_bos=args.add_bos,
        )
    else:
        text += "training needs documents of either split: add some to the dataset, or a file for validation"
    print_result(args, text, TokenizedDataset(args.output, written))
    return 0


def train_on_shards(
    folder: Path, tokenizer: str, *, vocab_size: int, documents: Sequence[Sequence[int]], add_bos: bool = False
) -> str:
    """Return a command that trains the smallest preset on token shards, with no more streams than documents.

    Args:
        folder: of the shards.
        tokenizer: that they were made with.
        vocab_size: of the tokenizer.
        documents: number in each shard, by split.
        add_bos: whether each document begins with BOS.
    """
    streams = TrainConfig().data_streams
    for split in documents:
        while streams > len(split) and min(split) < -(-streams // len(split)):
            streams //= 2
    return command_line(
        "train",
        preset="tiny",
        dataset=folder,
        dataset_config_name="none",
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        data_streams=streams,
        **({"add_bos": True} if add_bos else {}),
        run_dir=f"runs/{folder.name}",
    )


@dataclass(frozen=True)
class Written:
    """Contents of token shards.

    Attributes:
        documents: Documents of each shard, by split.
        tokens: Tokens of all shards.
        vocabulary: Size of the tokenizer's vocabulary.
        bad_records: Broken records in the shards that this call wrote.
    """

    documents: list[list[int]]
    tokens: int
    vocabulary: int
    bad_records: int


@dataclass(frozen=True)
class TokenizedDataset:
    """The document of `podwright-train tokenize --json`; `documents` are those of each shard, by split."""

    output: Path
    shards: Written = field(metadata=SPREAD)


def tokenize(
    dataset: str,
    output: Path,
    *,
    dataset_config_name: str | None,
    text_column: str,
    tokenizer: str,
    workers: int,
    max_bad_records: int,
    token_dtype: str | None = None,
    token_end: int | None = None,
    add_bos: bool = False,
) -> Written:
    """Write both splits of ``dataset`` as token shards; a dataset without validation shards is split as in training.

    Raises:
        DataError: There is no such dataset or tokenizer, a shard is broken or has too many broken records, ``output``
            exists, or ``<output>.partial`` was begun with other data, another tokenizer or other settings.
    """
    from podwright_training.data.corpus import Corpus
    from podwright_training.data.splits import SPLITS, Split, find_split
    from podwright_training.data.token_shards import SUFFIX, remove_unfinished
    from podwright_training.data.tokenizer import Encoder, load_tokenizer, vocabulary_size

    if output.exists():
        raise DataError(f"output {output} exists: remove it, or choose another folder")
    loaded = load_tokenizer(tokenizer)
    encoder = Encoder(loaded, add_bos=add_bos)
    output = place_of(output)
    splits = [find_split(dataset, dataset_config_name, name) for name in SPLITS]
    corpus_of = partial(
        Corpus, text_column=text_column, streams=1, seed=0, token_dtype=token_dtype, token_end=token_end
    )
    for name, split in zip(SPLITS, splits, strict=True):
        corpus_of(name, split).check(encoder, rank=0, world_size=1)
    work = work_folder(output)
    settings: dict[str, Any] = {
        "dataset": dataset,
        "dataset_config_name": dataset_config_name,
        "text_column": text_column,
    }
    settings |= {"token_dtype": token_dtype, "token_end": token_end} if token_dtype or token_end is not None else {}
    settings |= {"add_bos": True} if add_bos else {}
    begin(work, {**settings, "tokenizer_digest": encoder.digest, **_inputs(splits)})
    folder = work / "dataset"
    folder.mkdir(exist_ok=True)
    calls = []
    for name, split in zip(SPLITS, splits, strict=True):
        for number, (shard, file) in enumerate(zip(split.names, split.files, strict=True)):
            path = folder / f"{name}.{number:05d}-of-{len(split.files):05d}{SUFFIX}"
            calls.append((corpus_of("tokenize", Split((shard,), (file,), split.held_out)), path))
    write = partial(_write, encoder=encoder, max_bad_records=max_bad_records)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(calls)), context) as pool:
        written = run_all(pool, write, calls)
    remove_unfinished(folder)
    commit_folder(folder, output)
    shutil.rmtree(work)
    documents, tokens, broken = zip(*written, strict=True)
    training = len(splits[0].files)
    by_split = [list(documents[:training]), list(documents[training:])]
    return Written(by_split, sum(tokens), vocabulary_size(loaded), len(set().union(*broken)))


def _inputs(splits: Sequence[Split]) -> dict[str, Any]:
    """Return what identifies the documents of the splits."""
    return {
        f"{name}_{key}": value
        for name, split in zip(("train", "validation"), splits, strict=True)
        for key, value in (
            ("files", len(split.names)),
            ("names_digest", split.digest),
            ("contents_digest", split.contents_digest),
            ("held_out", split.held_out),
        )
    }


def _write(corpus: Corpus, path: Path, *, encoder: Encoder, max_bad_records: int) -> tuple[int, int, set[str]]:
    """Write one shard unless it exists; return its documents, tokens and the places of skipped records.

    A place is returned twice where both splits read the same file.
    """
    from podwright_training.data.token_shards import TokenShard, write_token_shard

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core is enough
    faults = Faults(max_bad_records, max_bad_shards=0)
    if not path.exists():
        documents = corpus.epoch(encoder=encoder, faults=faults)
        write_token_shard(path, documents, tokenizer=encoder.digest)
    shard = TokenShard(str(path))
    if shard.tokenizer != encoder.digest:
        raise DataError(f"{path} holds tokens of another tokenizer: remove {path.parent}, or choose another folder")
    return len(shard), shard.token_count, set(faults.fault_by_place)
