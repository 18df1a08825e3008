"""``podwright-train consolidate``: export a checkpoint for transformers, one file in memory at a time."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig

from podwright_training.checkpoint import step_folder
from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.data import load_tokenizer
from podwright_training.errors import UserError
from podwright_training.model import to_hugging_face
from podwright_training.model_card import NAME, model_card
from podwright_training.run_folder import ORIGIN, RunFolder, commit_folder, write_atomically

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHARD_GB = 5.0
READS = 10  # of a file's weights: what is read has another dtype than what is written
THREADS = 2  # one checks hashes, one waits for the disk


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train consolidate``."""
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    parser.add_argument("--step", type=int, help="of the checkpoint. Default: the newest")
    parser.add_argument("--ema", action="store_true", help="export the moving average of the weights (ema_decay)")
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="fp32", help="dtype of the exported weights. Default: fp32"
    )
    parser.add_argument(
        "--max-shard-gb",
        type=float,
        default=SHARD_GB,
        help=f"largest weights file, and memory needed. Default: {SHARD_GB}",
    )


def run(args: argparse.Namespace) -> int:
    """Write ``<run_dir>/hf``, replacing an older one when complete; return the exit status."""
    folder = RunFolder(Path(args.run_dir))
    path = consolidate(folder, step=args.step, ema=args.ema, dtype=args.dtype, max_shard_gb=args.max_shard_gb)
    print(f"{path} → {folder.hf}")
    return 0


def consolidate(
    folder: RunFolder,
    *,
    step: int | None = None,
    ema: bool = False,
    dtype: str = "fp32",
    max_shard_gb: float = SHARD_GB,
) -> Path:
    """Write ``folder.hf`` from a checkpoint and return that checkpoint.

    Args:
        folder: The run.
        step: Of the checkpoint; ``None``: the newest.
        ema: Export the moving average of the weights.
        dtype: ``fp32`` or ``bf16``.
        max_shard_gb: Largest file, in 10⁹ bytes; larger weights are split into several files.

    Raises:
        UserError: There is no run or checkpoint, it is damaged, or it has no moving average.
    """
    options = load_run(folder)
    checkpoints = {step_folder.read_state(path).step: path for path in step_folder.intact(options.checkpoints)}
    if not checkpoints:
        raise UserError(f"{options.checkpoints} has no complete checkpoint yet")
    if step is not None and step not in checkpoints:
        steps = ", ".join(map(str, sorted(checkpoints)))
        raise UserError(f"{options.checkpoints} has no complete checkpoint of step {step}; it has those of {steps}")
    path = checkpoints[max(checkpoints) if step is None else step]
    card = model_card(folder, path, options)
    export(path, folder.hf, options, ema=ema, dtype=dtype, max_shard_gb=max_shard_gb, card=card)
    return path


def export(
    path: Path,
    target: Path,
    options: TrainConfig,
    *,
    ema: bool = False,
    dtype: str = "fp32",
    max_shard_gb: float = SHARD_GB,
    card: str = "",
) -> None:
    """Write a checkpoint of a run as ``target``, complete or not at all; raise as ``consolidate`` does.

    Its hashes are checked while it is written, and files reach the disk while the next ones are read.
    """
    keys = _keys(path, ema=ema)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            checked = pool.submit(step_folder.check_hashes, path)
            try:
                _write_tokenizer(partial, options)
                files = _write_weights(partial, path, keys, dtype=DTYPES[dtype], max_shard_bytes=max_shard_gb * 1e9)
                synced = [pool.submit(_sync, file) for file in files]
                _write_description(partial, path, ema=ema, dtype=DTYPES[dtype])
                if card:
                    write_atomically(partial / NAME, card)
            finally:
                checked.result()  # what is damaged may fail to be read: its name says more than that failure
            for each in synced:
                each.result()
        for file in partial.iterdir():
            _sync(file)
        commit_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _keys(path: Path, *, ema: bool) -> dict[str, str]:
    """Return the checkpoint's tensor name of each weight."""
    keys = list(step_folder.shapes(path))
    names = [key.removeprefix("model.") for key in keys if key.startswith("model.")]
    source = {name: f"optimizer.{name}.ema" if ema else f"model.{name}" for name in names}
    if set(source.values()) - set(keys):
        raise UserError(f"checkpoint {path} has no moving average of the weights: it was trained without ema_decay")
    return source


def _write_tokenizer(target: Path, options: TrainConfig) -> None:
    tokenizer = load_tokenizer(options.tokenizer)
    tokenizer.save_pretrained(target)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(target)


def _write_weights(
    target: Path, path: Path, keys: dict[str, str], *, dtype: torch.dtype, max_shard_bytes: float
) -> Iterator[Path]:
    """Write weights in the Hugging Face hub's layout: one file, or several and an index; yield each that is written."""
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in _shapes(path, keys)}
    shards = list(_shards(sizes, max_shard_bytes))
    model_type = step_folder.model_config(path).model_type
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        weights: dict[str, torch.Tensor] = {}
        for group in _shards({name: sizes[name] for name in names}, max_shard_bytes / READS):
            tensors = step_folder.read(path, [keys[name] for name in group])
            for name in group:
                weights |= to_hugging_face(name, tensors.pop(keys[name]).to(dtype), model_type=model_type)
        save_file(weights, target / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(weights, file)
        weights.clear()  # or they would still be there beside the next file's
        yield target / file
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_atomically(target / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")


def _shapes(path: Path, keys: dict[str, str]) -> Iterator[tuple[str, torch.Size]]:
    shapes = step_folder.shapes(path)
    return ((name, shapes[key].size) for name, key in keys.items())


def _shards(sizes: dict[str, int], max_bytes: float) -> Iterator[list[str]]:
    """Group names in order, as many per shard as fit; one that does not fit gets its own shard."""
    shard: list[str] = []
    total = 0
    for name, size in sizes.items():
        if shard and total + size > max_bytes:
            yield shard
            shard, total = [], 0
        shard.append(name)
        total += size
    yield shard


def _write_description(target: Path, path: Path, *, ema: bool, dtype: torch.dtype) -> None:
    config = {**step_folder.model_config(path).to_hf(), "dtype": str(dtype).removeprefix("torch.")}
    write_atomically(target / "config.json", json.dumps(config, indent=2) + "\n")
    origin = {"checkpoint": str(path), "step": step_folder.read_state(path).step, "ema": ema}
    write_atomically(target / ORIGIN, json.dumps(origin, indent=2) + "\n")


def _sync(file: Path) -> None:
    file.chmod(0o644)  # the library writes weights for their owner alone
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
