"""Measure curation on one core beside datatrove's own pipeline of reader and tokenizer and beside ``datasets.map``.

    python bench/curate.py [--copies 4] [--rounds 3] [--pairs 1000]

Smallest: python bench/curate.py --copies 1 --rounds 1 --pairs 100

The text is the rehearsal's prose, several times, each copy with a number in every document. Each round runs every side
in a process of its own, which times its work without imports: our pipeline without filters and duplicates, which writes
checked token shards of two splits; datatrove's ``ParquetReader`` and ``DocumentTokenizer``, as in its example for C4;
``datasets.map`` with the tokenizer, saved to disk; and our pipeline with default filters and both kinds of duplicates.

Then made-up documents are curated in which pairs with a Jaccard similarity of 0.8 are planted, beside documents that
must stay. Prints the share of the pairs that lost one, and of the other documents that went; exits with 1 unless they
are at least 0.95 and below 1 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from podwright.checkout import ROOT
from podwright_rehearsal.run.supplies import dataset

sys.path.insert(0, str(ROOT / "tests" / "support"))

from podwright_testing.planted import JACCARD, Planted, documents_of

TOKENIZE, CURATE, DATATROVE, DATASETS = "podwright, tokens alone", "podwright, curated", "datatrove", "datasets.map"
SIDES = (TOKENIZE, DATATROVE, DATASETS, CURATE)
RECALL, LOST = 0.95, 0.01  # goals
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def main() -> int:
    """Print the table and what was found, or be one side; return 1 if that misses the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1000, help="planted near duplicates")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        _be(args.side, args.folder)
        return 0
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "raw"
        documents, tokens = _write(source, args.copies)
        seconds = defaultdict(list)
        for number in range(args.rounds):
            for side in SIDES:
                folder = Path(name) / f"{number} {side}"
                folder.mkdir()
                (folder / "raw").symlink_to(source)
                seconds[side].append(_measure(side, folder))
    print(f"{documents:,} documents, {tokens / 1e6:.1f} million tokens, {args.rounds} rounds, one core")
    for side in SIDES:
        median = statistics.median(seconds[side])
        ratio = statistics.median(seconds[DATATROVE]) / median
        print(f"{side:24} {documents / median:8,.0f} documents/s {tokens / median:10,.0f} tokens/s {ratio:5.2f} x")
    recall, lost = _find(args.pairs)
    print(f"near duplicates: recall {recall:.3f} of {args.pairs:,} pairs at Jaccard {JACCARD} (goal {RECALL} or more)")
    print(f"false removals: {lost:.2%} of the documents that must stay (goal below {LOST:.0%})")
    return int(recall < RECALL or lost >= LOST)


def _find(pairs: int) -> tuple[float, float]:
    """Curate documents with planted near duplicates; return the share found, and the share that went for nothing."""
    planted = Planted.make(pairs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "raw").mkdir()
        pq.write_table(pa.table({"text": planted.texts}), folder / "raw" / "planted.parquet")
        _ours(folder, filters=(), exact=False)()
        return planted.found(documents_of(folder / "tokens", dataset() / "tokenizer"))


def _write(folder: Path, copies: int) -> tuple[int, int]:
    """Write the text; return its documents and tokens."""
    from tokenizers import Tokenizer

    folder.mkdir()
    counter = Tokenizer.from_file(str(dataset() / "tokenizer" / "tokenizer.json"))
    documents = tokens = 0
    for file in sorted((dataset() / "en").glob("c4-train.*.json.gz")):
        with gzip.open(file, "rt") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        each = sum(len(encoding.ids) for encoding in counter.encode_batch(texts, add_special_tokens=False))
        for copy in range(copies):
            numbered = pa.table({"text": [f"Copy {copy}. {text}" for text in texts]})
            pq.write_table(numbered, folder / f"{file.name[:14]}-{copy}.parquet", compression="zstd")
        documents, tokens = documents + copies * len(texts), tokens + copies * each
    return documents, tokens


def _measure(side: str, folder: Path) -> float:
    command = [sys.executable, __file__, f"--side={side}", f"--folder={folder}"]
    environment = {**os.environ, **ENVIRONMENT, "HF_DATASETS_CACHE": str(folder / "cache")}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def _be(side: str, folder: Path) -> None:
    works: dict[str, Callable[[Path], Callable[[], Any]]] = {
        TOKENIZE: lambda here: _ours(here, filters=(), exact=False, near=False),
        CURATE: _ours,
        DATATROVE: _datatrove,
        DATASETS: _datasets,
    }
    work = works[side](folder)
    start = perf_counter()
    work()
    print(perf_counter() - start)


def _ours(folder: Path, **settings: Any) -> Callable[[], None]:
    from podwright_training.curation.settings import CurationSettings
    from podwright_training.curation.stages import Curation

    chosen = CurationSettings(dataset=str(folder / "raw"), tokenizer=str(dataset() / "tokenizer"), **settings)
    curation = Curation.begin(chosen, folder / "tokens")
    return lambda: curation.run(workers=1, on_stage=lambda *_: nullcontext())


def _datatrove(folder: Path) -> Callable[[], Any]:
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenizer = str(dataset() / "tokenizer" / "tokenizer.json")
    steps = [ParquetReader(str(folder / "raw")), DocumentTokenizer(str(folder / "tokens"), tokenizer)]
    executor = LocalPipelineExecutor(steps, tasks=1, logging_dir=str(folder / "logs"))
    return lambda: executor.run()  # noqa: PLW0108 -- its own type is not known


def _datasets(folder: Path) -> Callable[[], None]:
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(dataset() / "tokenizer", trust_remote_code=False)

    def work() -> None:
        read = load_dataset(
            "parquet", data_files=str(folder / "raw" / "*.parquet"), split="train", trust_remote_code=False
        )
        mapped = read.map(
            lambda batch: {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]},
            batched=True,
            remove_columns=["text"],
        )
        mapped.save_to_disk(folder / "tokens")

    return work


if __name__ == "__main__":
    sys.exit(main())
