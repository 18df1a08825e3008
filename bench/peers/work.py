"""The work every peer does: one shape of model, one batch, one corpus. Peers run without podwright: no import of it."""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work that the driver gives each peer.

    Attributes:
        data: what ``podwright-train prepare`` wrote.
        model: arguments of transformers' ``LlamaConfig``.
        dtype: ``fp32`` or ``bf16``, in which matrices are multiplied; weights and optimizer stay in fp32.
        device: ``cpu`` or ``cuda``.
        compile: whether ``torch.compile`` compiles each block, or what the trainer compiles if asked to.
    """

    data: str
    model: dict[str, Any]
    dtype: str
    device: str
    compile: bool
    sequence: int
    sequences_per_rank: int
    steps: int

    @property
    def tokenizer(self) -> Path:
        """Its folder."""
        return Path(self.data) / "tokenizer"

    @property
    def shards(self) -> list[Path]:
        """The training files."""
        return sorted(Path(self.data).glob("en/c4-train.*.json.gz"))

    def packed(self, *, rank: int, world_size: int) -> Iterator[list[int]]:
        """Sequences of ``sequence`` + 1 tokens as the usual loop packs them: document by document, its own shards."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))
        end = json.loads((self.tokenizer / "tokenizer_config.json").read_text())["eos_token"]
        if (end_id := tokenizer.token_to_id(end)) is None:
            raise SystemExit(f"{self.tokenizer}: {end} is not a token")
        waiting: list[int] = []
        while True:
            for shard in self.shards[rank::world_size]:
                with gzip.open(shard, "rt") as lines:
                    for line in lines:
                        waiting += [*tokenizer.encode(json.loads(line)["text"]).ids, end_id]
                        while len(waiting) > self.sequence:
                            yield waiting[: self.sequence + 1]
                            waiting = waiting[self.sequence :]

    def batches(self) -> Iterator[list[list[int]]]:
        """This rank's batches. For a GPU they are made before the first is asked for: no peer waits for its data."""
        sequences = self.packed(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        batches = ([next(sequences) for _ in range(self.sequences_per_rank)] for _ in range(self.steps))
        return batches if self.device == "cpu" else iter(list(batches))


def arguments(*own: str) -> tuple[Work, argparse.Namespace]:
    """Return the work and this peer's own options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, help="a Work as JSON")
    for option in own:
        parser.add_argument(option)
    args = parser.parse_args()
    return Work(**json.loads(args.work)), args


def report(step_s: list[float]) -> None:
    """Send the driver the seconds of each step and the most memory of a GPU in use, from the first rank."""
    import torch

    memory_bytes = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    if os.environ.get("RANK", "0") == "0":
        print("RESULT " + json.dumps({"step_s": step_s, "gpu_bytes": memory_bytes}), flush=True)
