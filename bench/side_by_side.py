"""Run the trainer beside its peers on the same work, each in a process of its own, by turns within each round.

Used by train_cpu.py and train_gpu.py.

A shared machine is never the same twice: what counts is the ratio of medians over all steps of all rounds. Peers come
from PyPI into an environment of their own below ``.cache/bench``; nothing in them is edited.
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
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import work
from peer_environment import peer_environment

from podwright.checkout import CACHE
from podwright_rehearsal.run.prose import fetch_prose
from podwright_training.commands.prepare import prepare
from podwright_training.config.sources import load
from podwright_training.config.train_config import TrainConfig
from podwright_training.ports import free_port
from podwright_training.spelling import as_flag

PEERS = Path(__file__).parent / "peers"
TORCH = "torch==2.13.0"
PEER_PACKAGES = ("torchtitan==0.3.0", "transformers==5.23.0", "accelerate==1.15.0", "triton==3.9.0", "psutil")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
OURS = "podwright"


@dataclass(frozen=True)
class Run:
    """Result of one run of a trainer; peak memory is the GPU's, or without one the largest process's."""

    step_s: list[float]
    peak_mib: float


@dataclass(frozen=True, kw_only=True)
class Match:
    """One work for all sides.

    Attributes:
        title: of the table.
        options: of our trainer; they say what the work is.
        ranks: processes, each with ``train_batch_size`` sequences per step.
        warm_up: first steps of each run that do not count: compilers, allocations, first batches.
        python: the Python of the peers.
    """

    title: str
    options: dict[str, Any]
    ranks: int
    warm_up: int
    python: Path

    @cached_property
    def config(self) -> TrainConfig:
        """The options, with all that they leave out."""
        return load(argparse.Namespace(config=None, unknown_words=[], **self.options))

    def ours(self, **more: Any) -> list[str]:
        """The command of our trainer."""
        flags = [as_flag(name, value) for name, value in {**self.options, **more}.items()]
        return [*self._torchrun(sys.executable), "-m", "podwright_training", "train", *flags]

    def peer(self, script: str, *options: str) -> list[str]:
        """The command of a peer."""
        config = self.config
        same = work.Work(
            data=config.dataset,
            model=config.model.to_hf(),
            dtype=config.compute_precision,
            device="cpu" if config.device == "cpu" else "cuda",
            compile=bool(config.compile),
            sequence=config.max_context_width,
            sequences_per_rank=config.train_batch_size,
            steps=config.max_steps,
        )
        return [*self._torchrun(self.python), str(PEERS / script), f"--work={json.dumps(asdict(same))}", *options]

    def play(self, sides: dict[str, list[str]], *, rounds: int) -> dict[str, list[Run]]:
        """Measure all sides by turns; report a failed one, as for lack of memory, and do not count its round."""
        runs: dict[str, list[Run]] = defaultdict(list)
        for number in range(rounds):
            for name, command in sides.items():
                run = self._measured(command)
                if isinstance(run, Run):
                    runs[name].append(run)
                    result = f"{self.tokens_per_s([run]):8,.0f} tok/s"
                else:
                    result = f"failed: {run}"
                print(f"{self.title} round {number + 1} {name:26} {result}", flush=True)
        return runs

    def tokens_per_s(self, runs: list[Run]) -> float:
        """Of all ranks: the median of all counted steps."""
        tokens = self.ranks * self.config.train_batch_size * self.config.max_context_width
        return tokens / statistics.median(seconds for run in runs for seconds in run.step_s)

    def _measured(self, command: list[str]) -> Run | Path:
        """Run a trainer in a folder of its own; if it fails, the file that holds what it said."""
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            if "podwright_training" in command:
                command = [*command, f"--run-dir={run_dir}"]
            log = Path(folder) / "log"
            environment = {**os.environ, **ENVIRONMENT}
            with log.open("w") as output:
                process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder
                )
                _, status, usage = os.wait4(process.pid, 0)
            printed = log.read_text()
            if status:
                kept = CACHE / "bench" / f"failed-{process.pid}.log"
                kept.write_text(printed)
                return kept
            step_s, gpu_bytes = _result(run_dir / "metrics.jsonl", printed)
            return Run(step_s[self.warm_up :], gpu_bytes / 2**20 if gpu_bytes else usage.ru_maxrss / 1024)

    def _torchrun(self, python: str | Path) -> list[str]:
        # Not --standalone, whose store on every address is unpickled.
        words = [f"--nproc-per-node={self.ranks}", f"--master-port={free_port()}"]
        return [str(python), "-m", "torch.distributed.run", *words]


def options_of_work(*, vocab_size: int) -> dict[str, Any]:
    """Options that every match has in common: the data, and what the peers' optimizers do."""
    data = _data(vocab_size)
    return {
        "dataset": str(data),
        "tokenizer": str(data / "tokenizer"),
        "lr": work.LEARNING_RATE,
        "beta1": work.BETAS[0],
        "beta2": work.BETAS[1],
        "weight_decay": work.WEIGHT_DECAY,
        "grad_clip": work.CLIP,
        "activation_checkpointing": False,
        "data_streams": 16,
        "validation_batches": 1,
        "val_batch_size": 1,
        "logging_freq": 1,
    }


def print_table(match: Match, runs: dict[str, list[Run]], *, peak_flops: float | None = None) -> None:
    """Tokens/s, how ours compares, peak memory and, of a peak that was measured, the share that is used."""
    if OURS not in runs:
        raise SystemExit(f"{match.title}: no run of {OURS} came to its end")
    speeds = {name: match.tokens_per_s(each) for name, each in runs.items()}
    peaks = {name: statistics.median(run.peak_mib for run in each) for name, each in runs.items()}
    flops = match.config.model.flops_per_token(match.config.max_context_width)
    print(f"\n{match.title}: medians of all counted steps of all rounds")
    print(f"{'':26} rounds {'tok/s':>8} {'podwright is':>13} {'peak MiB':>9}" + f" {'MFU':>5}" * bool(peak_flops))
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        used = f" {speed * flops / peak_flops:5.0%}" if peak_flops else ""
        print(f"{name:26} {len(runs[name]):6} {speed:8,.0f} {speeds[OURS] / speed:12.2f}x {peaks[name]:9,.0f}{used}")
    peers = [name for name in runs if not name.startswith(OURS)]
    if peers:
        print(
            f"against the best peer: {speeds[OURS] / max(speeds[name] for name in peers):.2f}x its tokens/s; "
            f"peak memory {peaks[OURS] / min(peaks[name] for name in peers):.2f}x that of the smallest\n",
            flush=True,
        )


def peer_python() -> Path:
    """Return the Python of an environment with the peers."""
    return peer_environment("environment", [TORCH], [TORCH, *PEER_PACKAGES])  # Some peers need torch to build.


def _result(metrics: Path, printed: str) -> tuple[list[float], int | None]:
    """Seconds of each step, and the most memory of a GPU in use: of our metrics, or what a peer says."""
    if metrics.exists():
        events = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = [event for event in events if event["event"] == "train"]
        step_s, last = [event["step_s"] for event in steps], steps[-1]
        return step_s, last["memory_peak_bytes"] if last["memory_reserved_bytes"] else None
    (line,) = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))
    return result["step_s"], result["gpu_bytes"]


def _data(vocab_size: int) -> Path:
    """The manual of PostgreSQL in C4's layout, with a tokenizer of at most ``vocab_size`` tokens."""
    folder = CACHE / "bench" / f"v{vocab_size}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        prose = fetch_prose(CACHE / "podwright" / "prose")
        prepare(prose, folder, shards=16, vocab_size=vocab_size, validation_fraction=0.05)
    return folder
