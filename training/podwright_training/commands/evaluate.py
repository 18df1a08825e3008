"""The consolidated model, as ``transformers`` runs it, on the batches of the trainer's own validation."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from podwright_training.commands.consolidate import ORIGIN
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import TrainConfig
from podwright_training.data import open_stream
from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run folder is all it needs."""
    parser.add_argument("--run_dir", required=True, help="folder of the run, consolidated before")


def run(args: argparse.Namespace) -> int:
    """Print the evaluation as JSON."""
    print(json.dumps(evaluate(RunFolder(Path(args.run_dir))), indent=2))
    return 0


def evaluate(folder: RunFolder) -> dict[str, Any]:
    """Loss and perplexity in fp32 of ``folder.hf``, beside those the trainer wrote at the same step.

    Raises:
        UserError: There is no consolidated model, or the trainer did not validate the step it is from.
    """
    if not folder.hf.exists():
        raise UserError(f"{folder.hf} does not exist: run `podwright-train consolidate --run_dir {folder.root}` first")
    step = json.loads((folder.hf / ORIGIN).read_text())["step"]
    trainer = next((event for event in reversed(list(folder.events("validation"))) if event["step"] == step), None)
    if trainer is None:
        raise UserError(f"{folder.metrics} has no validation of step {step}, which {folder.hf} is from")
    loss = _loss(folder.hf, load_file(folder.config), tokens=trainer["tokens"])
    perplexity = math.exp(loss)
    return {
        "model": str(folder.hf),
        "step": step,
        "tokens": trainer["tokens"],
        "loss": loss,
        "perplexity": perplexity,
        "trainer_loss": trainer["loss"],
        "trainer_perplexity": trainer["perplexity"],
        "relative_difference": abs(perplexity - trainer["perplexity"]) / trainer["perplexity"],
    }


@torch.no_grad()
def _loss(model_folder: Path, options: TrainConfig, *, tokens: int) -> float:
    """Mean cross-entropy over the first ``tokens`` of the validation split: the same ones for any number of ranks."""
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    stream = open_stream(
        options,
        split="validation",
        tokenizer=str(model_folder),
        rank=0,
        world_size=1,
        local_batch_size=options.val_batch_size,
    )
    total = 0.0
    for _ in range(tokens // (options.val_batch_size * options.max_context_width)):
        batch = stream.next_batch()
        logits_BTV = model(input_ids=batch.tokens_BT).logits
        total += F.cross_entropy(logits_BTV.flatten(0, 1).double(), batch.labels_BT.flatten(), reduction="sum").item()
    return total / tokens
