"""The newest checkpoint of a run → a folder that ``transformers`` loads."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from transformers import GenerationConfig

from podwright_training import checkpoint
from podwright_training.config import TrainConfig, UserError, load_file
from podwright_training.data import load_tokenizer
from podwright_training.model import LlamaForCausalLM
from podwright_training.run import RunFolder, write_atomically

ORIGIN = "podwright.json"  # which step of which run the model is
SHARD_SIZE = "5GB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run folder is all it needs."""
    parser.add_argument("--run_dir", required=True, help="folder of the run")


def run(args: argparse.Namespace) -> int:
    """Write ``<run_dir>/hf``; an older one is replaced when the new one is whole."""
    folder = RunFolder(Path(args.run_dir))
    path = consolidate(folder)
    print(f"{path} → {folder.hf}")
    return 0


def consolidate(folder: RunFolder) -> Path:
    """Write ``folder.hf`` from the newest checkpoint and return that checkpoint.

    Raises:
        UserError: There is no run, no checkpoint, or a damaged one.
    """
    if not folder.config.exists():
        raise UserError(f"run_dir {folder.root} holds no {folder.config.name}: no training has started there")
    options = load_file(folder.config)
    path = checkpoint.newest(options.checkpoints)
    if path is None:
        raise UserError(f"{options.checkpoints} holds no complete checkpoint yet")
    partial = folder.hf.with_name(f".{folder.hf.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_tokenizer(partial, options)
    _write_model(partial, path)
    _replace(folder.hf, partial)
    return path


def load_model(path: Path) -> LlamaForCausalLM:
    """The model of a checkpoint on the CPU in fp32, not divided."""
    with torch.device("meta"):
        model = LlamaForCausalLM(checkpoint.model_config(path))
    model.to_empty(device="cpu")
    model.model.rotary_emb.reset()
    checkpoint.load_weights(model, path)
    return model


def _write_tokenizer(target: Path, options: TrainConfig) -> None:
    tokenizer = load_tokenizer(options.tokenizer)
    tokenizer.save_pretrained(target)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(target)


def _write_model(target: Path, path: Path) -> None:
    model = load_model(path)
    weights = {
        name: parameter.detach() for name, parameter in model.named_parameters()
    }  # a tied head is not named twice
    save_torch_state_dict(weights, target, max_shard_size=SHARD_SIZE)
    write_atomically(target / "config.json", json.dumps(model.config.to_hf(), indent=2) + "\n")
    origin = {"checkpoint": str(path), "step": checkpoint.read_state(path).step}
    write_atomically(target / ORIGIN, json.dumps(origin, indent=2) + "\n")


def _replace(target: Path, partial: Path) -> None:
    for file in partial.iterdir():
        file.chmod(0o644)  # the library writes weights for their owner alone
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
