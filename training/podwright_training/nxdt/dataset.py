"""Tokenise a dataset to Arrow, as NxD Training reads it with ``datasets.load_from_disk``.

``python -m podwright_training.nxdt.dataset --out FOLDER --sequences N``, then options of podwright-train. Each row has
``max_context_width`` tokens of packed documents. Its labels are the same tokens: the model shifts them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError
from podwright_training.data.mixture import data_mixture_of
from podwright_training.data.phased_mixture import MixtureChange
from podwright_training.errors import UserError
from podwright_training.run_folder import alone, commit_folder, place_of

if TYPE_CHECKING:
    import pyarrow as pa

    from podwright_training.data.phases import Phase
    from podwright_training.data.stream import PackedStream

BLOCK_ROWS = 256  # written at once


def write(config: TrainConfig, out: Path, *, sequences: int, workers: int = 0) -> int:
    """Write at most ``sequences`` rows, of one pass over the data; return their number.

    Every document is read once; a stream's last tokens that do not fill a row are left out. A mixture is read until the
    source that is read least was read once on average, and the others as often as their weights say.

    Args:
        config: What is tokenised, and how.
        out: Folder to write, the same bytes with any number of workers.
        sequences: Largest number of rows.
        workers: Processes that read and tokenise; 0: this one does.

    Raises:
        DataError: The dataset or tokenizer is unreadable.
    """
    import datasets  # seconds
    from datasets.arrow_writer import ArrowWriter
    from datasets.table import MemoryMappedTable

    out = place_of(out)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # A killed job left it: the lock says that no job writes it now.
    partial.mkdir(parents=True)
    features = datasets.Features(
        {name: datasets.Sequence(datasets.Value(kind)) for name, kind in (("input_ids", "int32"), ("labels", "int32"))}
        | {"attention_mask": datasets.Sequence(datasets.Value("int8"))}
    )
    tokens = _tokens(replace(config, data_workers=workers), sequences)
    with ArrowWriter(path=str(partial / "rows.arrow"), features=features) as writer:
        while block := list(islice(tokens, BLOCK_ROWS)):
            writer.write_table(_table(np.stack(block)))
        writer.finalize()
    table = MemoryMappedTable.from_file(str(partial / "rows.arrow"))
    rows = datasets.Dataset(table, info=datasets.DatasetInfo(features=features), fingerprint=out.name)
    rows.save_to_disk(str(partial / "rows"))
    commit_folder(partial / "rows", out)
    count = len(rows)
    shutil.rmtree(partial, ignore_errors=True)
    return count


def _tokens(config: TrainConfig, sequences: int) -> Iterator[NDArray[np.int32]]:
    """Yield the tokens of each row, in the order in which podwright-train would read them on one rank."""
    from podwright_training.data.stream import open_stream
    from podwright_training.data.tokenizer import load_tokenizer

    once = config if config.data_mixture else replace(config, max_epochs=1)
    mixture = data_mixture_of(config)
    stream = open_stream(
        once, tokenizer=load_tokenizer(config.tokenizer), rank=0, world_size=1, split="train", local_batch_size=1
    )
    stream.change_mixture(_changes(mixture.phases, config.max_context_width))
    read_names = {source.name for source in mixture.sources if source.weight}.union(
        *(phase.weights for phase in mixture.phases)
    )
    try:
        written = 0
        while written < sequences and not stream.is_spent and _least_epochs(stream, read_names) < config.data_streams:
            batch = stream.next_batch()
            if batch.counted_tokens == config.max_context_width:
                yield batch.tokens_BT[0].numpy().astype(np.int32)
                written += 1
    finally:
        stream.close()


def _changes(phases: Sequence[Phase], context_width: int) -> list[MixtureChange]:
    """Return where a mixture's phases begin; raise ``DataError`` for those that begin at a step."""
    for phase in phases:
        if phase.from_tokens is None:
            raise DataError(
                f"data_mixture: a phase begins from_step {phase.from_step}, but a dataset for NxD Training is written "
                "before its steps: use from_tokens in all phases"
            )
    return [MixtureChange(-(-(phase.from_tokens or 0) // context_width), phase.weights) for phase in phases]


def _least_epochs(stream: PackedStream, names: set[str]) -> float:
    """Return how often the streams have read the source that they have read least, of those with these names."""
    epochs_by_name = dict(zip(stream.sequences_by_source, stream.epochs_read(), strict=True))
    return min(epochs_by_name[name] for name in names)


def _table(tokens: NDArray[np.int32]) -> pa.Table:
    """Return rows as Arrow has them, without a Python object for each token."""
    import pyarrow as pa

    rows, width = tokens.shape
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    ids = pa.ListArray.from_arrays(offsets, pa.array(tokens.reshape(-1)))
    mask = pa.ListArray.from_arrays(offsets, pa.array(np.ones(rows * width, dtype=np.int8)))
    return pa.table({"input_ids": ids, "labels": ids, "attention_mask": mask})


def main(words: list[str]) -> int:
    """Write the dataset unless it exists; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m podwright_training.nxdt.dataset", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--sequences", type=int, required=True, help="largest number of rows")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=cores, help="processes that tokenise. Default: one for each core"
    )
    sources.add_arguments(parser)
    args: Any = parser.parse_args(words)
    try:
        with alone(args.out):
            if args.out.exists():
                print(f"{args.out} exists already")
                return 0
            count = write(sources.load(args), args.out, sequences=args.sequences, workers=max(0, args.workers))
            print(f"{args.out}: {count:,} sequences")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # A DataError is already a message for the user.
        print(f"error: cannot write {error.filename or args.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
