"""Tokenise a dataset to Arrow, as NxD Training reads it with ``datasets.load_from_disk``.

``python -m podwright_training.nxdt.dataset --out FOLDER --sequences N``, then options of podwright-train. Each row has
``max_context_width`` tokens of packed documents. Its labels are the same tokens: the model shifts them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.run_folder import alone, commit_folder


def write(options: TrainConfig, out: Path, *, sequences: int) -> int:
    """Write at most ``sequences`` rows, of one pass over the data; return their number.

    Raises:
        DataError: The dataset or tokenizer is unreadable.
    """
    import datasets  # seconds

    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a job that was killed: the lock says that none writes it
    features = datasets.Features(
        {name: datasets.Sequence(datasets.Value(kind)) for name, kind in (("input_ids", "int32"), ("labels", "int32"))}
        | {"attention_mask": datasets.Sequence(datasets.Value("int8"))}
    )
    rows = datasets.Dataset.from_generator(
        _rows,
        features=features,
        gen_kwargs={"options": options, "sequences": sequences},
        cache_dir=str(partial / "cache"),
    )
    rows.save_to_disk(str(partial / "rows"))
    commit_folder(partial / "rows", out)
    count = len(rows)
    shutil.rmtree(partial, ignore_errors=True)
    return count


def _rows(options: TrainConfig, sequences: int) -> Iterator[dict[str, list[int]]]:
    from podwright_training.data.stream import open_stream
    from podwright_training.data.tokenizer import load_tokenizer

    stream = open_stream(
        options, tokenizer=load_tokenizer(options.tokenizer), rank=0, world_size=1, split="train", local_batch_size=1
    )
    for _ in range(sequences):
        tokens = stream.next_batch().tokens_BT[0].tolist()
        if min(stream.finished_epochs()) > 0:
            return
        yield {"input_ids": tokens, "labels": tokens, "attention_mask": [1] * len(tokens)}


def main(words: list[str]) -> int:
    """Write the dataset unless it is there; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m podwright_training.nxdt.dataset", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--sequences", type=int, required=True, help="largest number of rows")
    sources.add_arguments(parser)
    args: Any = parser.parse_args(words)
    try:
        with alone(args.out):
            if args.out.exists():
                print(f"{args.out} is there already")
                return 0
            print(f"{args.out}: {write(sources.load(args), args.out, sequences=args.sequences):,} sequences")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
