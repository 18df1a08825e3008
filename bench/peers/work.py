"""The work every peer does: one shape of model, one batch, one corpus; standard library only."""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

WIDTH, LAYERS, HEADS, KEY_VALUE_HEADS, FEED_FORWARD = 256, 4, 8, 4, 768
SEQUENCE = 512
SEQUENCES_PER_RANK = 8
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0


def arguments() -> argparse.Namespace:
    """What the driver tells each peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="what `podwright-train prepare` wrote")
    parser.add_argument("--vocab_size", type=int, required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--wrap", choices=("ddp", "fsdp2"))
    return parser.parse_args()


def shards(data: Path) -> list[Path]:
    """The training files."""
    return sorted(data.glob("en/c4-train.*.json.gz"))


def packed(data: Path, *, rank: int, world_size: int) -> Iterator[list[int]]:
    """Sequences of ``SEQUENCE + 1`` tokens as the usual loop packs them: one document at a time, every second shard."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    end = json.loads((data / "tokenizer" / "tokenizer_config.json").read_text())["eos_token"]
    end_id = tokenizer.token_to_id(end)
    waiting: list[int] = []
    while True:
        for shard in shards(data)[rank::world_size]:
            with gzip.open(shard, "rt") as lines:
                for line in lines:
                    waiting += [*tokenizer.encode(json.loads(line)["text"]).ids, end_id]
                    while len(waiting) > SEQUENCE:
                        yield waiting[: SEQUENCE + 1]
                        waiting = waiting[SEQUENCE:]


def report(step_s: list[float]) -> None:
    """Tell the driver the seconds of each step, from the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print("STEPS " + json.dumps(step_s), flush=True)
