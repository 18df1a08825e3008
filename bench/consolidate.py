"""Measure an export of a checkpoint, beside a copy of its files and the way that guides describe.

    python bench/consolidate.py [--parameters 1000000000] [--rounds 2]

Smallest: python bench/consolidate.py --parameters 3000000 --rounds 1

Each round runs, one after another, in a process of its own: ``cp`` of the weights' file and fsync; ``podwright-train
consolidate`` in files of 1 GB; and ``from_config`` + ``torch.distributed.checkpoint.load`` + ``save_pretrained`` +
fsync. Prints the medians in seconds, ratios, and the peak memory above that of a process with the same imports.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoConfig, AutoModelForCausalLM

from podwright.checkout import CACHE
from podwright_training.checkpoint import checkpoint_writer, snapshot, step_folder, trainer_state
from podwright_training.checkpoint.export import export
from podwright_training.config.export_options import ExportOptions
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import LlamaForCausalLM

SHARD_GB = 1.0
WIDTH, SMALL_WIDTH, VOCABULARY = 2048, 128, 8192  # of the model; layers make up the rest
LARGE = 1e8  # parameters, from which a model has the first width
SIDES = ("copy", "podwright", "guides", "imports")


def main() -> None:
    """Print the table, or be one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        _be(args.side, args.folder, args.parameters)
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="consolidate-") as name:
        _compare(Path(name), args.parameters, args.rounds)


def _compare(folder: Path, parameters: float, rounds: int) -> None:
    options = _options(parameters)
    _write_checkpoint(folder, options)
    size = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*.distcp"))
    print(f"{options.model.parameters:,} parameters, {size / 1e9:.2f} GB in fp32, {rounds} rounds")
    seconds, peaks = defaultdict(list), {}
    for _ in range(rounds):
        for side in SIDES:
            spent, peaks[side] = _measure(side, folder, parameters)
            seconds[side].append(spent)
            shutil.rmtree(folder / side, ignore_errors=True)
    copied = statistics.median(seconds["copy"])
    for side in SIDES[:-1]:
        median = statistics.median(seconds[side])
        above = f", {(peaks[side] - peaks['imports']) / 1e9:6.2f} GB above the imports" if side != "copy" else ""
        print(f"{side:10} {median:7.1f} s  {median / copied:5.2f} x the copy{above}")
    print(f"memory of podwright: {(peaks['podwright'] - peaks['imports']) / 1e9 / SHARD_GB:.2f} x the largest file")


def _measure(side: str, folder: Path, parameters: float) -> tuple[float, int]:
    """Return the seconds of a side's work and its process's peak memory in bytes."""
    command = [sys.executable, __file__, f"--parameters={parameters}", f"--folder={folder}", f"--side={side}"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    spent, peak = answer.split()
    return float(spent), int(peak)


def _be(side: str, folder: Path, parameters: float) -> None:
    options, (path,) = _options(parameters), step_folder.intact(folder / "checkpoints")
    target = folder / side
    works: dict[str, Callable[[], None]] = {
        "copy": lambda: _copy(path, target),
        "podwright": lambda: export(path, target, options, ExportOptions(max_shard_gb=SHARD_GB)),
        "guides": lambda: _as_guides(path, target),
        "imports": lambda: None,
    }
    start = perf_counter()
    works[side]()
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    print(perf_counter() - start, int(peak) * 1024)  # not getrusage's, which begins with the parent's


def _copy(path: Path, target: Path) -> None:
    target.mkdir()
    for file in path.glob("*.distcp"):
        shutil.copy(file, target)
    _sync(target.iterdir())


def _as_guides(path: Path, target: Path) -> None:
    config = trainer_state.model_config(path).to_hf()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), trust_remote_code=False)
    state = {"model": model.state_dict()}
    load(state, checkpoint_id=path, no_dist=True)
    model.load_state_dict(state["model"])
    model.save_pretrained(target)
    _sync(target.iterdir())


def _sync(files: Iterable[Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _options(parameters: float) -> TrainConfig:
    width = WIDTH if parameters >= LARGE else SMALL_WIDTH
    shape: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_heads": width // 64,
        "vocab_size": VOCABULARY,
    }
    one = TrainConfig(**shape, num_layers=1).model.parameters
    layer = TrainConfig(**shape, num_layers=2).model.parameters - one
    layers = max(1, round((parameters - one) / layer) + 1)
    tokenizer = CACHE / "podwright" / "dataset" / "tokenizer"  # of the rehearsal
    return TrainConfig(**shape, num_layers=layers, tokenizer=str(tokenizer))


def _write_checkpoint(folder: Path, options: TrainConfig) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in LlamaForCausalLM(options.model).named_parameters()}
    weights = {name: torch.empty(shape).uniform_(-0.02, 0.02) for name, shape in shapes.items()}
    state = trainer_state.TrainerState(step=1, sequences=0, data={}, model=asdict(options.model), world_size=1)
    checkpoint_writer.write(folder / "checkpoints", snapshot.Snapshot(state, {"model": weights}, {}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
