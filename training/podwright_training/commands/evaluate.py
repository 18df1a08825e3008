"""``podwright-train evaluate``: perplexity of the consolidated model under transformers, on the validation batches."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.openmp import sleep_when_idle
from podwright_training.run_folder import ORIGIN, RunFolder, write_atomically


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train evaluate``."""
    parser.add_argument("--run_dir", required=True, help="folder of a consolidated run")


def run(args: argparse.Namespace) -> int:
    """Print the evaluation as JSON and keep it in the run folder, for its report; return the exit status."""
    folder = RunFolder(Path(args.run_dir))
    text = json.dumps(evaluate(folder), indent=2)
    write_atomically(folder.evaluation, text + "\n")
    print(text)
    return 0


def evaluate(folder: RunFolder) -> dict[str, Any]:
    """Return loss and perplexity of ``folder.hf`` in fp32, beside the trainer's at the same step.

    Raises:
        UserError: The run is not consolidated, or the trainer did not validate the step it was consolidated from.
    """
    if not folder.hf.exists():
        raise UserError(f"{folder.hf} does not exist: run `podwright-train consolidate --run_dir {folder.root}` first")
    step = json.loads((folder.hf / ORIGIN).read_text())["step"]
    trainer = next((event for event in reversed(list(folder.events("validation"))) if event["step"] == step), None)
    if trainer is None:
        raise UserError(f"{folder.metrics} has no validation of step {step}, from which {folder.hf} was consolidated")
    loss = _loss(folder.hf, load_run(folder), tokens=trainer["tokens"])
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


def _loss(model_folder: Path, options: TrainConfig, *, tokens: int) -> float:
    """Return the mean cross-entropy over the first ``tokens`` of the validation split, the same for any world size."""
    sleep_when_idle()
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from podwright_training.data import open_stream

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    stream = open_stream(
        replace(options, data_workers=0),  # a few batches: workers would only have to be started
        split="validation",
        tokenizer=str(model_folder),
        rank=0,
        world_size=1,
        local_batch_size=options.val_batch_size,
    )
    total = 0.0
    with torch.no_grad():
        for _ in range(tokens // (options.val_batch_size * options.max_context_width)):
            batch = stream.next_batch()
            # Without a cache, transformers attends within the documents that the positions show.
            logits_BTV = model(input_ids=batch.tokens_BT, position_ids=batch.positions_BT, use_cache=False).logits
            labels_S = batch.labels_BT.flatten()
            total += cross_entropy(logits_BTV.flatten(0, 1).double(), labels_S, reduction="sum").item()
    return total / tokens
