"""Measure the data path.

    python bench/data.py [--rounds 5] [--documents 5000]

Smallest: python bench/data.py --rounds 1 --documents 100

With few documents the start of our worker is most of its time: compare rates only with thousands.

Prints tokens/s on one core of tokenise + pack, ours beside the way of the reference (AWS's FSDP test case, after
MosaicML's ConcatTokensDataset: one text at a time, Python lists added up and cut), round by round in turns, medians and
their ratio; then the seconds from a position thousands of documents deep to its first batch, by format. The text is the
source code of Python's standard library, cut like C4's documents.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from podwright_training.data.corpus import DataPosition
from podwright_training.data.mixture import Source
from podwright_training.data.stream import PackedStream
from podwright_training.data.token_shards import write_token_shard
from podwright_training.data.tokenizer import Encoder

CONTEXT_WIDTH = 2048
VOCAB_SIZE = 8192
RESUME_DEPTHS = (1_000, 10_000, 100_000)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each side, in turns [5]")
    parser.add_argument("--documents", type=int, default=5_000, help="tokenised per round [5000]")
    arguments = parser.parse_args()
    texts = list(islice(_texts(), arguments.documents))
    tokenizer = _train_tokenizer(texts[:1_000])
    with tempfile.TemporaryDirectory() as folder:
        _compare(Path(folder) / "speed", texts, tokenizer, arguments.rounds)
        _resume(Path(folder), texts, tokenizer)


def _compare(folder: Path, texts: list[str], tokenizer: PreTrainedTokenizerFast, rounds: int) -> None:
    _write_json(folder / "train.jsonl.gz", texts)
    sides: dict[str, Callable[[], int]] = {
        "reference": lambda: _reference(folder / "train.jsonl.gz", tokenizer),
        "podwright": lambda: _ours(folder, tokenizer, len(texts)),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begin = time.perf_counter()
            tokens = side()
            speeds[name].append(tokens / (time.perf_counter() - begin))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        shown = " ".join(f"{value / 1e3:.0f}" for value in values)
        print(f"tokenise + pack, one core: {name:9} {medians[name] / 1e3:7.0f}k tokens/s (rounds: {shown})")
    print(f"ratio {medians['podwright'] / medians['reference']:.2f}")


def _reference(file: Path, tokenizer: PreTrainedTokenizerFast) -> int:
    """Blocks as the reference makes them, read as fast as can be; returns their tokens."""
    buffer: list[int] = []
    blocks = 0
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            encoded = tokenizer(json.loads(line)["text"], truncation=False, padding=False)["input_ids"]
            buffer = buffer + encoded + [tokenizer.eos_token_id]
            while len(buffer) >= CONTEXT_WIDTH:
                np.asarray(buffer[:CONTEXT_WIDTH])
                buffer = buffer[CONTEXT_WIDTH:]
                blocks += 1
    return blocks * CONTEXT_WIDTH


def _ours(folder: Path, tokenizer: PreTrainedTokenizerFast, documents: int) -> int:
    """Batches up to the end of the epoch; returns their tokens."""
    stream = _stream(folder, tokenizer)
    batches = 0
    while stream.state_dict()["streams"]["0"]["text"][0] == 0 and batches < documents:
        stream.next_batch()
        batches += 1
    return batches * CONTEXT_WIDTH


def _resume(folder: Path, texts: list[str], tokenizer: PreTrainedTokenizerFast) -> None:
    copies = -(-2 * RESUME_DEPTHS[-1] // len(texts))
    encoder = Encoder(tokenizer)
    documents = list(encoder.encode(texts)) * copies
    texts *= copies
    _write_json(folder / "gzip" / "train.jsonl.gz", texts)
    (folder / "parquet").mkdir()
    pq.write_table(pa.table({"text": texts}), folder / "parquet" / "train.parquet", row_group_size=10_000)
    (folder / "tokens").mkdir()
    write_token_shard(folder / "tokens" / "train.safetensors", documents, tokenizer=encoder.digest)
    print("seconds to the first batch from a position that is … documents deep")
    for kind in ("gzip", "parquet", "tokens"):
        seconds = [_resume_s(folder / kind, tokenizer, depth, len(texts)) for depth in RESUME_DEPTHS]
        shown = "  ".join(f"{depth:,}: {value:.3f}" for depth, value in zip(RESUME_DEPTHS, seconds, strict=True))
        print(f"{kind:8} {shown}")


def _resume_s(folder: Path, tokenizer: PreTrainedTokenizerFast, depth: int, documents: int) -> float:
    stream = _stream(folder, tokenizer)
    state = stream.state_dict()
    (corpus,) = stream._recipe.corpora  # noqa: SLF001 - a position is no one else's business
    windows = corpus.order.windows(0, 0)
    state["streams"]["0"]["text"] = list(DataPosition(window=min(int(depth / documents * windows), windows - 1)))
    begin = time.perf_counter()
    stream.load_state_dict(state)
    stream.next_batch()
    return time.perf_counter() - begin


def _stream(folder: Path, tokenizer: PreTrainedTokenizerFast) -> PackedStream:
    return PackedStream(
        [Source(name="text", dataset=str(folder))], split="train", tokenizer=tokenizer, context_width=CONTEXT_WIDTH,
        rank=0, world_size=1, local_batch_size=1, streams=1,
    )  # fmt: skip


def _texts() -> Iterator[str]:
    """Documents of some 2,000 characters, log-normal, endless."""
    dice = random.Random(0)  # noqa: S311 - not for secrets
    while True:
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            content = path.read_text(encoding="utf-8", errors="replace")
            while content:
                length = int(min(6000, max(200, dice.lognormvariate(7.2, 0.8))))
                yield content[:length]
                content = content[length:]


def _write_json(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.writelines(json.dumps({"text": text, "url": "", "timestamp": ""}) + "\n" for text in texts)


def _train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts, trainer=trainer)
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|end|>")  # noqa: S106 - no password


if __name__ == "__main__":
    main()
