"""Measure an export of a checkpoint, beside a copy of its files and other ways to export it.

    python bench/consolidate.py [--parameters 1000000000] [--rounds 2] [--shard-gb 1]

Smallest: python bench/consolidate.py --parameters 3000000 --rounds 1 --shard-gb 0.005

Two ranks write the checkpoint. Then each round runs, one after another, in a process of its own:

- copy: ``cp`` of the weights' files and fsync;
- podwright: ``podwright-train consolidate``, which checks the checkpoint's hashes and reads its files back;
- unverified: the same without both checks;
- resumed: the same after an export that was interrupted when half of the bytes were written;
- guides: ``from_config`` + ``torch.distributed.checkpoint.load`` + ``save_pretrained`` + fsync;
- torchtitan: load all weights, then PyTorch's ``HuggingFaceStorageWriter`` with its consolidation of parts into files;
- streamed: the same writer without parts; it loads a tensor when it writes it.

Prints the medians of wall and CPU time, ratios, and the peak memory above that of a process with the same imports.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
from time import perf_counter, process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing
from torch.distributed import tensor as distributed
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM

from podwright.checkout import CACHE
from podwright_training.checkpoint import (
    checkpoint_reader,
    checkpoint_writer,
    export,
    manifest,
    snapshot,
    step_folder,
    trainer_state,
)
from podwright_training.config.export_options import ExportOptions
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import LlamaForCausalLM

WIDTH, SMALL_WIDTH, VOCABULARY = 2048, 128, 8192  # of the model; layers make up the rest
LARGE = 1e8  # parameters, from which a model has the first width
SIDES = ("copy", "podwright", "unverified", "resumed", "guides", "torchtitan", "streamed", "imports")
RANKS = 2


class Cost(NamedTuple):
    """Cost of one export."""

    seconds: float
    cpu_s: float
    peak_bytes: float


def main() -> None:
    """Print the table, or be one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shard-gb", type=float, default=1.0, help="largest file of the export. Default: 1")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        _be(args.side, args.folder, args.shard_gb)
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="consolidate-") as name:
        _compare(Path(name), args.parameters, args.rounds, args.shard_gb)


def _compare(folder: Path, parameters: float, rounds: int, shard_gb: float) -> None:
    config = _config(parameters)
    multiprocessing.spawn(_write_checkpoint, (folder, config), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]
    size = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*.distcp"))
    print(f"{config.model.parameters:,} parameters, {size / 1e9:.2f} GB in fp32, {rounds} rounds")
    costs: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(rounds):
        for side in SIDES:
            costs[side].append(_measure(side, folder, shard_gb))
            shutil.rmtree(folder / side, ignore_errors=True)
    medians = {side: Cost(*map(statistics.median, zip(*costs[side], strict=True))) for side in SIDES}
    largest_file = min(shard_gb * 1e9, size)
    for side in SIDES[:-1]:
        cost, copied = medians[side], medians["copy"]
        memory = max(0.0, cost.peak_bytes - medians["imports"].peak_bytes)
        print(
            f"{side:10} {cost.seconds:7.1f} s  {cost.seconds / copied.seconds:5.2f} x the copy  CPU {cost.cpu_s:6.1f} s"
            f"  memory {memory / 1e9:6.2f} GB  {memory / largest_file:5.2f} x the largest file"
        )


def _measure(side: str, folder: Path, shard_gb: float) -> Cost:
    command = [sys.executable, __file__, f"--folder={folder}", f"--side={side}", f"--shard-gb={shard_gb}"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    return Cost(*map(float, answer.split()))


def _be(side: str, folder: Path, shard_gb: float) -> None:
    """Do the work of a side and print what it cost."""
    (path,) = step_folder.intact(folder / "checkpoints")
    target = folder / side
    works: dict[str, Callable[[], None]] = {
        "copy": lambda: _copy(path, target),
        "podwright": lambda: _export(path, target, shard_gb),
        "unverified": lambda: _export_unverified(path, target, shard_gb),
        "resumed": lambda: _export(path, target, shard_gb),
        "guides": lambda: _as_guides(path, target, shard_gb),
        "torchtitan": lambda: _as_torchtitan(path, target, shard_gb),
        "streamed": lambda: _stream(path, target, shard_gb),
        "imports": lambda: None,
    }
    if side == "resumed":
        _interrupt(path, target, shard_gb)
    start, cpu_start = perf_counter(), process_time()
    works[side]()
    seconds, cpu_s = perf_counter() - start, process_time() - cpu_start
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    print(seconds, cpu_s, int(peak) * 1024)  # not getrusage's, which begins with the parent's


def _export(path: Path, target: Path, shard_gb: float, on_bytes: Callable[[int], object] = lambda _: None) -> None:
    tokenizer = CACHE / "podwright" / "dataset" / "tokenizer"  # The rehearsal made it.
    config, export_options = TrainConfig(tokenizer=str(tokenizer)), ExportOptions(max_shard_gb=shard_gb)
    export.export(path, target, config, export_options, on_bytes=on_bytes)


def _interrupt(path: Path, target: Path, shard_gb: float) -> None:
    """Leave what an export leaves that is interrupted halfway."""
    remaining_bytes = export.total_bytes(path, ExportOptions()) / 2

    def count(written: int) -> None:
        nonlocal remaining_bytes
        remaining_bytes -= written
        if remaining_bytes < 0:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        _export(path, target, shard_gb, count)


def _export_unverified(path: Path, target: Path, shard_gb: float) -> None:
    with (
        patch.object(manifest, "check_hashes", lambda _: None),
        patch.object(export, "_read_back", lambda _: ""),
        patch.object(export, "xxh3_128", _NoHash),
    ):
        _export(path, target, shard_gb)


class _NoHash:
    def update(self, _: bytes | memoryview) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


def _copy(path: Path, target: Path) -> None:
    target.mkdir()
    for file in path.glob("*.distcp"):
        shutil.copy(file, target)
    _sync(target.iterdir())


def _as_guides(path: Path, target: Path, shard_gb: float) -> None:
    config = trainer_state.model_config(path).to_hf()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), trust_remote_code=False)
    state = {"model": model.state_dict()}
    load(state, checkpoint_id=path, no_dist=True)
    model.load_state_dict(state["model"])
    model.save_pretrained(target, max_shard_size=f"{shard_gb * 1000:.0f}MB")
    _sync(target.iterdir())


def _as_torchtitan(path: Path, target: Path, shard_gb: float) -> None:
    tensors = _read(path, _tensors(path))
    writer = HuggingFaceStorageWriter(
        str(target), _file_numbers(path, shard_gb), save_distributed=True, enable_consolidation=True
    )
    save(tensors, storage_writer=writer, no_dist=True)
    _sync(target.glob("*.safetensors"))


def _stream(path: Path, target: Path, shard_gb: float) -> None:
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for name, entry in _tensors(path).items()
    }
    writer = HuggingFaceStorageWriter(str(target), _file_numbers(path, shard_gb))
    save(tensors, storage_writer=writer, planner=_StreamPlanner(path), no_dist=True)


class _StreamPlanner(DefaultSavePlanner):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        name = write_item.index.fqn
        return _read(self._path, [name])[name]


def _read(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Return whole tensors of a checkpoint, as PyTorch reads them."""
    entries = checkpoint_reader.shapes(path)
    tensors: dict[str, Any] = {
        name: torch.empty(entries[name].size, dtype=entries[name].properties.dtype) for name in names
    }
    load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


def _tensors(path: Path) -> dict[str, TensorStorageMetadata]:
    return {name: entry for name, entry in checkpoint_reader.shapes(path).items() if name.startswith("model.")}


def _file_numbers(path: Path, shard_gb: float) -> dict[str, int]:
    """Return the number of the file that each tensor goes to; the first is 1."""
    begin_bytes = itertools.accumulate((4 * entry.size.numel() for entry in _tensors(path).values()), initial=0)
    return {name: 1 + int(begin // (shard_gb * 1e9)) for name, begin in zip(_tensors(path), begin_bytes, strict=False)}


def _sync(files: Iterable[Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _config(parameters: float) -> TrainConfig:
    width = WIDTH if parameters >= LARGE else SMALL_WIDTH
    shape: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_heads": width // 64,
        "vocab_size": VOCABULARY,
    }
    one = TrainConfig(**shape, num_layers=1).model.parameters
    layer = TrainConfig(**shape, num_layers=2).model.parameters - one
    return TrainConfig(**shape, num_layers=max(1, round((parameters - one) / layer) + 1))


def _write_checkpoint(rank: int, folder: Path, config: TrainConfig) -> None:
    """Write the checkpoint of random weights, each rank half of every one."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in LlamaForCausalLM(config.model).named_parameters()}
    weights = {
        name: distributed.empty(shape, device_mesh=mesh, placements=[distributed.Shard(0)])
        for name, shape in shapes.items()
    }
    for weight in weights.values():
        weight.to_local().uniform_(-0.02, 0.02)
    state = trainer_state.TrainerState(step=1, sequences=0, data={}, model=asdict(config.model), world_size=RANKS)
    checkpoint_writer.write(folder / "checkpoints", snapshot.Snapshot(state, {"model": {**weights}}, {}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
