"""Compare a model's perplexity by the trainer, ``evaluate``, transformers and lm-evaluation-harness.

    python bench/perplexity.py [--steps 60]

Smallest: python bench/perplexity.py --steps 2

Trains the preset tiny on the rehearsal's prose and exports it. lm-evaluation-harness pins other versions than this
checkout, so it has an environment of its own below ``.cache/bench``. All judge the same tokens; exits with 1 unless all
perplexities agree to 4 digits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml
from peer_environment import peer_environment
from transformers import AutoModelForCausalLM

from podwright_rehearsal.run.supplies import SHARDS, dataset
from podwright_training.__main__ import main as podwright_train
from podwright_training.commands.evaluate import evaluate
from podwright_training.config.sources import load_run
from podwright_training.data.stream import open_stream
from podwright_training.harness import run_tasks
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import as_flag

PACKAGES = ("torch==2.13.0", "lm-eval==0.4.13", "transformers==5.23.0", "accelerate==1.15.0")
PEER = Path(__file__).parent / "peers" / "harness.py"
TOLERANCE = 5e-5  # 4 digits
TASK_DOCUMENTS = 4


def main() -> int:
    """Print the perplexities; return 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        _train(folder, args.steps)
        found = evaluate(folder, device="cpu")
        rows = list(_rows(folder, found.tokens))
        by_name = {
            "trainer": found.trainer.trainer_loss if found.trainer else math.nan,
            "evaluate": found.quality.loss,
            "transformers": _by_transformers(folder.hf, rows),
            "lm-eval": _by_harness(folder.hf, rows),
        }
        numbers = _task(folder.hf)
    perplexities = {name: math.exp(loss) for name, loss in by_name.items()}
    for name, perplexity in perplexities.items():
        print(f"{name:14} {perplexity:.6f}")
    spread = max(perplexities.values()) / min(perplexities.values()) - 1
    print(f"spread {spread:.1e} on {found.tokens:,} tokens")
    print(f"a task of {TASK_DOCUMENTS} documents: {numbers['bits_per_byte,none']:.4f} bits per byte by lm-eval")
    return int(spread > TOLERANCE)


def _train(folder: RunFolder, steps: int) -> None:
    data = {"dataset": dataset(), "tokenizer": dataset() / "tokenizer", "data_streams": SHARDS, "data_workers": 0}
    options: dict[str, Any] = {
        "run_dir": folder.root,
        "preset": "tiny",
        "bf16": False,
        "device": "cpu",
        "max_steps": steps,
    }
    size = {"validation_freq": steps, "checkpoint_freq": steps, "validation_batches": 1}
    flags = [as_flag(key, value) for key, value in {**options, **data, **size}.items()]
    for command in (["train", *flags], ["consolidate", f"--run-dir={folder.root}"]):
        if status := podwright_train(command):
            sys.exit(status)


def _rows(folder: RunFolder, tokens: int) -> Iterator[list[int]]:
    """Yield the validation's sequences, each with its first token and its labels."""
    options = replace(load_run(folder), data_workers=0)
    stream = open_stream(
        options, split="validation", tokenizer=str(folder.hf), rank=0, world_size=1, local_batch_size=1
    )
    for _ in range(tokens // options.max_context_width):
        batch = stream.next_batch()
        yield [int(batch.tokens_BT[0, 0]), *batch.labels_BT[0].tolist()]


def _by_transformers(folder: Path, rows: list[list[int]]) -> float:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval()
    total = 0.0
    with torch.no_grad():
        for row in rows:
            tokens_T = torch.tensor(row)
            logits_TV = model(input_ids=tokens_T[None, :-1]).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits_TV, tokens_T[1:], reduction="sum"))
    return total / sum(len(row) - 1 for row in rows)


def _by_harness(folder: Path, rows: list[list[int]]) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(rows, file)
        file.flush()
        command = [str(_environment()), str(PEER), str(folder), file.name]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    return float(json.loads(line.removeprefix("RESULT "))["loss"])


def _task(model: Path) -> dict[str, float]:
    """Run a task whose data is a local file, as ``podwright-train evaluate --tasks`` does."""
    with gzip.open(next((dataset() / "en").glob("c4-validation.*.json.gz")), "rt") as file:
        documents = list(islice(file, TASK_DOCUMENTS))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "prose.jsonl").write_text("".join(documents))
        task = {
            "task": "prose",
            "dataset_path": "json",
            "test_split": "test",
            "output_type": "loglikelihood_rolling",
            "dataset_kwargs": {"data_files": {"test": f"{name}/prose.jsonl"}},
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        }
        (Path(name) / "prose.yaml").write_text(yaml.safe_dump(task))
        program = str(_environment().with_name("lm_eval"))
        found = run_tasks(model, ["prose"], program=program, include_path=Path(name), device="cpu", dtype="float32")
    return found["prose"]


def _environment() -> Path:
    """Return a Python that has lm-evaluation-harness."""
    return peer_environment("lm-eval", PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
