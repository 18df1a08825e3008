"""The trainer beside its peers on CPUs: ``python bench/train_cpu.py [--rounds 5] [--case fp32-v2048 …]``.

Two gloo ranks of one thread train the same small Llama (4 layers of 256, 512 tokens, 8 sequences per rank) on the same
prose. Peers take turns within each round, because a shared machine is never the same twice; what counts is the ratio of
medians over all rounds. Peak memory is the largest resident size of any process of a run.

Peers come from PyPI into an environment of their own below ``.cache/bench``; nothing in them is edited.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import work

from podwright.rehearsal.prose import fetch_prose
from podwright_training.prepare import prepare

CACHE = Path(__file__).resolve().parents[1] / ".cache"
PEERS = Path(__file__).parent / "peers"
RANKS = 2
FIRST_STEPS = 3  # of each run, not counted: allocations, first batches
PEER_PACKAGES = ("torchtitan==0.3.0", "transformers==5.23.0", "accelerate==1.15.0", "triton==3.9.0", "psutil")
CASES = {
    "fp32-v2048": ("fp32", 2048),
    "bf16-v2048": ("bf16", 2048),
    "fp32-v32000": ("fp32", 32000),
    "bf16-v32000": ("bf16", 32000),
}


@dataclass(frozen=True)
class Run:
    """What one run of a trainer took."""

    step_s: list[float]
    peak_mib: float


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--case", choices=CASES, action="append")
    args = parser.parse_args()
    python = _peer_python()
    for case in args.case or CASES:
        dtype, vocab_size = CASES[case]
        data = _data(vocab_size)
        runs: dict[str, list[Run]] = defaultdict(list)
        for number in range(args.rounds):
            for name, command in _commands(data, dtype, vocab_size, args.steps, python).items():
                runs[name].append(_measure(command))
                print(f"{case} round {number + 1} {name:12} {_tokens_per_s(runs[name][-1:]):8,.0f} tok/s", flush=True)
        _print_table(case, runs)
    return 0


def _commands(data: Path, dtype: str, vocab_size: int, steps: int, python: Path) -> dict[str, list[str]]:
    """How each trainer is started."""
    shared = [f"--data={data}", f"--dtype={dtype}", f"--vocab_size={vocab_size}", f"--steps={steps}"]

    def peer(script: str, *options: str) -> list[str]:
        return [*_torchrun(python), str(PEERS / script), *shared, *options]

    return {
        "podwright": [
            *_torchrun(Path(sys.executable)),
            "-m",
            "podwright_training",
            "train",
            *_flags(data, dtype, vocab_size, steps),
        ],
        "plain DDP": peer("plain.py", "--wrap=ddp"),
        "plain FSDP2": peer("plain.py", "--wrap=fsdp2"),
        "HF Trainer": peer("hf_trainer.py"),
        "torchtitan": peer("torchtitan_cpu.py"),
    }


def _torchrun(python: Path) -> list[str]:
    return [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}"]


def _flags(data: Path, dtype: str, vocab_size: int, steps: int) -> list[str]:
    values = {
        "dataset": data,
        "tokenizer": data / "tokenizer",
        "vocab_size": vocab_size,
        "hidden_width": work.WIDTH,
        "num_layers": work.LAYERS,
        "num_heads": work.HEADS,
        "num_key_value_heads": work.KEY_VALUE_HEADS,
        "intermediate_size": work.FEED_FORWARD,
        "max_context_width": work.SEQUENCE,
        "train_batch_size": work.SEQUENCES_PER_RANK,
        "lr": work.LEARNING_RATE,
        "beta1": work.BETAS[0],
        "beta2": work.BETAS[1],
        "weight_decay": work.WEIGHT_DECAY,
        "grad_clip": work.CLIP,
        "bf16": int(dtype == "bf16"),
        "activation_checkpointing": 0,
        "data_streams": 16,
        "max_steps": steps,
        "validation_batches": 1,
        "val_batch_size": 1,
        "device": "cpu",
    }
    return [f"--{name}={value}" for name, value in values.items()]


def _measure(command: list[str]) -> Run:
    """Run a trainer in a folder of its own; its steps from what it printed or, for podwright, wrote."""
    with tempfile.TemporaryDirectory() as folder:
        if "podwright_training" in command:
            command = [*command, f"--run_dir={folder}/run"]
        log = Path(folder) / "log"
        with log.open("w") as output:
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            }
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
            _, status, usage = os.wait4(process.pid, 0)
        text = log.read_text()
        if status:
            raise SystemExit(f"{' '.join(command)}\nended with status {status}:\n{text[-2000:]}")
        return Run(_steps(Path(folder), text)[FIRST_STEPS:], usage.ru_maxrss / 1024)


def _steps(folder: Path, printed: str) -> list[float]:
    metrics = folder / "run" / "metrics.jsonl"
    if metrics.exists():
        events = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [event["step_s"] for event in events if event["event"] == "train"]
    (line,) = [line for line in printed.splitlines() if line.startswith("STEPS ")]
    steps: list[float] = json.loads(line.removeprefix("STEPS "))
    return steps


def _tokens_per_s(runs: list[Run]) -> float:
    tokens = RANKS * work.SEQUENCES_PER_RANK * work.SEQUENCE
    return tokens / statistics.median(seconds for run in runs for seconds in run.step_s)


def _print_table(case: str, runs: dict[str, list[Run]]) -> None:
    ours = _tokens_per_s(runs["podwright"])
    best = max(_tokens_per_s(each) for name, each in runs.items() if name != "podwright")
    least = min(_peak_mib(each) for name, each in runs.items() if name != "podwright")
    print(f"\n{case}: {len(runs['podwright'])} rounds, medians of all counted steps")
    print(f"{'':12} {'tok/s':>8} {'podwright is':>13} {'peak MiB':>9}")
    for name, each in sorted(runs.items(), key=lambda item: -_tokens_per_s(item[1])):
        print(f"{name:12} {_tokens_per_s(each):8,.0f} {ours / _tokens_per_s(each):12.2f}x {_peak_mib(each):9,.0f}")
    print(
        f"against the best peer: {ours / best:.2f}x its tokens/s; "
        f"peak memory {_peak_mib(runs['podwright']) / least:.2f}x that of the smallest\n",
        flush=True,
    )


def _peak_mib(runs: list[Run]) -> float:
    return statistics.median(run.peak_mib for run in runs)


def _data(vocab_size: int) -> Path:
    """The manual of PostgreSQL in C4's layout, with a tokenizer of at most ``vocab_size`` tokens."""
    folder = CACHE / "bench" / f"v{vocab_size}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        prose = fetch_prose(CACHE / "podwright" / "prose")
        prepare(prose, folder, shards=16, vocab_size=vocab_size, validation_fraction=0.05)
    return folder


def _peer_python() -> Path:
    """The Python of an environment with the peers; made once."""
    folder = CACHE / "bench" / "environment"
    python = folder / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).parent / "uv"
        links = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", python, *links, "torch==2.13.0"], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", python, *links, "torch==2.13.0", *PEER_PACKAGES], check=True)
    return python


if __name__ == "__main__":
    raise SystemExit(main())
