"""Measure the memory of tools whose input grows: tokenize, tokenizer train and report.

    python bench/data_memory.py [--megabytes 64] [--lines 1000000]

Smallest: python bench/data_memory.py --megabytes 1 --lines 2000

Each tool runs by itself; printed is the peak of its largest process, and the time. The data are made up: one file of
JSON lines of random words, the same characters without spaces, and the metrics of a run with so many log lines.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

WORDS = 20_000
IDEOGRAPHS = range(0x4E00, 0x4E00 + 3000)
DOCUMENT_CHARACTERS = 2000
MEASURE = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
MEASURE += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"


def main() -> None:
    """Print a line for each tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--lines", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = args.megabytes * 1_000_000
        _write_texts(folder / "spaced", size, " ")
        _write_texts(folder / "unspaced", size, "")
        _write_metrics(folder / "run", args.lines)
        data = ("--dataset-config-name", "none", "--dataset")
        learn = ("tokenizer", "train", "--vocab-size", "4096", *data)
        _measure("tokenizer train", *learn, folder / "spaced", "--output", folder / "tokenizer")
        _measure("tokenizer train, no spaces", *learn, folder / "unspaced", "--output", folder / "unspaced_tokenizer")
        tokenize = ("tokenize", "--data-workers", "1", "--tokenizer", folder / "tokenizer", *data, folder / "spaced")
        _measure("tokenize", *tokenize, "--output", folder / "tokens")
        _measure("report", "report", "--run-dir", folder / "run")


def _write_texts(folder: Path, size: int, space: str) -> None:
    """Write one training file of about ``size`` bytes, and a small one for validation."""
    dice = random.Random(0)  # noqa: S311 -- not for secrets
    if space:
        words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))) for _ in range(WORDS)]
    else:
        words = [chr(code) for code in IDEOGRAPHS]
    weights = [1 / (rank + 1) for rank in range(len(words))]  # Zipf's law
    folder.mkdir()
    with (folder / "train.jsonl").open("w") as file:
        while file.tell() < size:
            text = space.join(dice.choices(words, weights, k=DOCUMENT_CHARACTERS // (len(space) * 5 + 1)))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    (folder / "validation.jsonl").write_text(json.dumps({"text": text}) + "\n")


def _write_metrics(folder: Path, lines: int) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text("max_context_width: 4096\n")
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(event) + "\n" for event in _events(lines))


def _events(lines: int) -> Iterator[dict[str, object]]:
    dice = random.Random(0)  # noqa: S311 -- not for secrets
    yield {"event": "start", "time": 1.7e9, "step": 0, "world_size": 64}
    for step in range(1, lines + 1):
        numbers = {
            "lr": 3e-4,
            "mfu": 0.4,
            "step_s": 1.0,
            "data_s": 0.01,
            "lag_s": 0.0,
            "tokens_per_s": dice.gauss(5e5, 1e4),
        }
        counts = {"sequences": 256 * step, "batch_sequences": 256, "memory_peak_bytes": 60_000_000_000}
        loss = 2 + 8 * step**-0.3 + dice.gauss(0, 0.05)
        yield {
            "event": "train",
            "time": 1.7e9 + step,
            "step": step,
            "loss": loss,
            "grad_norm": 0.4,
            **numbers,
            **counts,
        }


def _measure(label: str, *command: str | Path) -> None:
    start = perf_counter()
    program = (sys.executable, "-c", MEASURE, sys.executable, "-m", "podwright_training", *map(str, command))
    output = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
    peak_mb = int(output.splitlines()[-1]) * 1024 / 1e6
    print(f"{label:26}  {peak_mb:>8,.0f} MB  {perf_counter() - start:>7.1f} s", flush=True)


if __name__ == "__main__":
    main()
