"""``podwright-train evaluate``: perplexity of the consolidated model under transformers, on the validation batches."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.openmp import sleep_when_idle
from podwright_training.run_folder import ORIGIN, RunFolder, write_atomically

if TYPE_CHECKING:
    from podwright_training.batch import Batch

HEAD_TOKENS = 512  # whose logits exist at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train evaluate``."""
    parser.add_argument("--run_dir", required=True, help="folder of a consolidated run")
    parser.add_argument("--device", help="torch device. Default: cuda where there is one, else cpu")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and activations [float32]"
    )


def run(args: argparse.Namespace) -> int:
    """Print the evaluation as JSON and keep it in the run folder, for its report; return the exit status."""
    folder = RunFolder(Path(args.run_dir))
    text = json.dumps(evaluate(folder, device=args.device, dtype=args.dtype), indent=2)
    write_atomically(folder.evaluation, text + "\n")
    print(text)
    return 0


def evaluate(folder: RunFolder, *, device: str | None = None, dtype: str = "float32") -> dict[str, Any]:
    """Return loss (nats per token), perplexity and bits per byte of ``folder.hf``, beside the trainer's at its step.

    Args:
        folder: a consolidated run.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        dtype: name of torch's type of weights and activations; the loss is summed in float64.

    Raises:
        UserError: The run is not consolidated, or the trainer did not validate the step it was consolidated from.
    """
    if not folder.hf.exists():
        raise UserError(f"{folder.hf} does not exist: run `podwright-train consolidate --run_dir {folder.root}` first")
    step = json.loads((folder.hf / ORIGIN).read_text())["step"]
    trainer = next((event for event in reversed(list(folder.events("validation"))) if event["step"] == step), None)
    if trainer is None:
        raise UserError(f"{folder.metrics} has no validation of step {step}, from which {folder.hf} was consolidated")
    tokens = trainer["tokens"]
    nats, text_bytes = _sums(folder.hf, load_run(folder), tokens=tokens, device=device, dtype=dtype)
    loss = nats / tokens
    perplexity = math.exp(loss)
    return {
        "model": str(folder.hf),
        "step": step,
        "tokens": tokens,
        "loss": loss,
        "perplexity": perplexity,
        "bits_per_byte": nats / math.log(2) / text_bytes,
        "trainer_loss": trainer["loss"],
        "trainer_perplexity": trainer["perplexity"],
        "relative_difference": abs(perplexity - trainer["perplexity"]) / trainer["perplexity"],
    }


def _sums(
    model_folder: Path, options: TrainConfig, *, tokens: int, device: str | None, dtype: str
) -> tuple[float, int]:
    """Return the cross-entropy in nats and the bytes of text of the first ``tokens`` of the validation split.

    They are the same tokens for any world size.
    """
    sleep_when_idle()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from podwright_training.data import open_stream

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype)).eval().to(device)
    stream = open_stream(
        replace(options, data_workers=0),  # a few batches: workers would only have to be started
        split="validation",
        tokenizer=str(model_folder),
        rank=0,
        world_size=1,
        local_batch_size=options.val_batch_size,
    )
    nats, text_bytes = 0.0, 0
    with torch.no_grad():
        for _ in range(tokens // (options.val_batch_size * options.max_context_width)):
            batch = stream.next_batch()
            nats += _cross_entropy(model, batch.to(torch.device(device)))
            text_bytes += len(tokenizer.decode(batch.labels_BT.flatten(), skip_special_tokens=True).encode())
    return nats, text_bytes


def _cross_entropy(model: Any, batch: Batch) -> float:
    """Return the sum over the batch's tokens, from transformers' own layers and head.

    The head sees a few tokens at a time: the logits of a batch of 8 x 8192 tokens over 128,256 words take 34 GB.
    """
    from torch.nn.functional import cross_entropy

    # Without a cache, transformers attends within the documents that the positions show.
    hidden_BTD = model.get_decoder()(
        input_ids=batch.tokens_BT, position_ids=batch.positions_BT, use_cache=False
    ).last_hidden_state
    head = model.get_output_embeddings()
    hidden_SD, labels_S = hidden_BTD.flatten(0, 1), batch.labels_BT.flatten()
    nats = 0.0
    for start in range(0, len(labels_S), HEAD_TOKENS):
        part = slice(start, start + HEAD_TOKENS)
        nats += cross_entropy(head(hidden_SD[part]).double(), labels_S[part], reduction="sum").item()
    return nats
