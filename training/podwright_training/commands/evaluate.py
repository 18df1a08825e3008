"""``podwright-train evaluate``: perplexity of the consolidated model under transformers, on the validation batches."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_training.commands.generate import PROMPTS, generate
from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.harness import PROGRAM, run_tasks
from podwright_training.openmp import sleep_when_idle
from podwright_training.run_folder import ORIGIN, RunFolder, write_atomically

if TYPE_CHECKING:
    from podwright_training.batch import Batch

SAMPLE_TOKENS = 32  # that each checkpoint writes for each prompt
HEAD_TOKENS = 512  # whose logits exist at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train evaluate``."""
    parser.add_argument("--run-dir", required=True, help="folder of a consolidated run")
    parser.add_argument("--device", help="torch device. Default: cuda where there is one, else cpu")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of weights and activations. Default: float32",
    )
    parser.add_argument(
        "--all-checkpoints", action="store_true", help="also evaluate every checkpoint, and let it continue the prompts"
    )
    parser.add_argument(
        "--prompts", nargs="+", default=list(PROMPTS), metavar="TEXT", help=f"prompts to continue {list(PROMPTS)}"
    )
    parser.add_argument(
        "--tasks", nargs="+", default=[], metavar="NAME", help="also run these tasks of lm-evaluation-harness"
    )
    parser.add_argument("--include-path", type=Path, help="folder of further tasks, as lm_eval's option")
    parser.add_argument(
        "--lm-eval",
        default=PROGRAM,
        help=f"program of lm-evaluation-harness, in its own environment. Default: {PROGRAM}",
    )


def run(args: argparse.Namespace) -> int:
    """Print the evaluation as JSON and keep it in the run folder, for its report; return the exit status."""
    folder = RunFolder(Path(args.run_dir))
    found = evaluate(folder, device=args.device, dtype=args.dtype)
    if args.all_checkpoints:
        found["progression"] = list(
            progression(folder, args.prompts, tokens=found["tokens"], device=args.device, dtype=args.dtype)
        )
    if args.tasks:
        found["tasks"] = run_tasks(
            folder.hf,
            args.tasks,
            program=args.lm_eval,
            include_path=args.include_path,
            device=args.device or _default_device(),
            dtype=args.dtype,
        )
    text = json.dumps(found, indent=2)
    write_atomically(folder.evaluation, text + "\n")
    print(text)
    return 0


@dataclass
class Sums:
    """Counts of a model on some text.

    Attributes:
        nats: Cross-entropy of all tokens.
        tokens: Their number.
        text_bytes: Bytes of the text that they are.
    """

    nats: float = 0.0
    tokens: int = 0
    text_bytes: int = 0

    def __add__(self, other: Sums) -> Sums:
        """Return the counts on both texts."""
        return Sums(self.nats + other.nats, self.tokens + other.tokens, self.text_bytes + other.text_bytes)

    def figures(self) -> dict[str, float]:
        """Return loss (nats per token), perplexity and bits per byte."""
        loss = self.nats / self.tokens
        bits_per_byte = self.nats / math.log(2) / max(self.text_bytes, 1)
        return {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": bits_per_byte}


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
        raise UserError(f"{folder.hf} does not exist: run `podwright-train consolidate --run-dir {folder.root}` first")
    step = json.loads((folder.hf / ORIGIN).read_text())["step"]
    trainer = next((event for event in reversed(list(folder.events("validation"))) if event["step"] == step), None)
    if trainer is None:
        raise UserError(f"{folder.metrics} has no validation of step {step}, from which {folder.hf} was consolidated")
    tokens = trainer["tokens"]
    by_source = _sums(folder.hf, load_run(folder), tokens=tokens, device=device, dtype=dtype)
    figures = sum(by_source.values(), Sums()).figures()
    found = {
        "model": str(folder.hf),
        "step": step,
        "tokens": tokens,
        **figures,
        "trainer_loss": trainer["loss"],
        "trainer_perplexity": trainer["perplexity"],
        "relative_difference": abs(figures["perplexity"] - trainer["perplexity"]) / trainer["perplexity"],
    }
    if len(by_source) > 1:
        found["sources"] = {name: {"tokens": sums.tokens, **sums.figures()} for name, sums in by_source.items()}
    return found


def progression(
    folder: RunFolder, prompts: list[str], *, tokens: int, device: str | None = None, dtype: str = "float32"
) -> Iterator[dict[str, Any]]:
    """Yield the figures of every checkpoint of a run, the oldest first, and what it writes: its likeliest tokens.

    Args:
        folder: a run.
        prompts: texts to continue.
        tokens: of the validation split to evaluate on.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        dtype: name of torch's type of weights and activations.
    """
    from podwright_training.checkpoint import step_folder
    from podwright_training.commands.consolidate import export

    options = load_run(folder)
    for path in reversed(step_folder.intact(options.checkpoints)):
        with tempfile.TemporaryDirectory(dir=folder.root, prefix=".evaluate.") as temporary:
            model = Path(temporary) / "hf"
            export(path, model, options)
            by_source = _sums(model, options, tokens=tokens, device=device, dtype=dtype)
            texts = generate(model, prompts, max_new_tokens=SAMPLE_TOKENS, temperature=0, seed=0, device=device)
        step = step_folder.read_state(path).step
        yield {"step": step, **sum(by_source.values(), Sums()).figures(), "samples": texts}


def _sums(model_folder: Path, options: TrainConfig, *, tokens: int, device: str | None, dtype: str) -> dict[str, Sums]:
    """Return the counts on the first ``tokens`` of the validation split, by source.

    They are the same tokens for any world size.
    """
    sleep_when_idle()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from podwright_training.data import open_stream

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
    device = device or _default_device()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype)).eval().to(device)
    stream = open_stream(
        replace(options, data_workers=0),  # a few batches: workers would only have to be started
        split="validation",
        tokenizer=str(model_folder),
        rank=0,
        world_size=1,
        local_batch_size=options.val_batch_size,
    )
    by_source: dict[str, Sums] = {}
    with torch.no_grad():
        for _ in range(tokens // (options.val_batch_size * options.max_context_width)):
            batch = stream.next_batch()
            nats = _cross_entropy(model, batch.to(torch.device(device)))
            for name, row, labels_T in zip(stream.sources(), nats, batch.labels_BT, strict=True):
                text = tokenizer.decode(labels_T, skip_special_tokens=True)
                by_source[name] = by_source.get(name, Sums()) + Sums(row, len(labels_T), len(text.encode()))
    return by_source


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _cross_entropy(model: Any, batch: Batch) -> list[float]:
    """Return the sum over each sequence's tokens, from transformers' own layers and head.

    The head sees a few tokens at a time: the logits of a batch of 8 x 8192 tokens over 128,256 words take 34 GB.
    """
    import torch
    from torch.nn.functional import cross_entropy

    # Without a cache, transformers attends within the documents that the positions show.
    hidden_BTD = model.get_decoder()(
        input_ids=batch.tokens_BT, position_ids=batch.positions_BT, use_cache=False
    ).last_hidden_state
    head = model.get_output_embeddings()
    hidden_SD, labels_S = hidden_BTD.flatten(0, 1), batch.labels_BT.flatten()
    parts = [slice(start, start + HEAD_TOKENS) for start in range(0, len(labels_S), HEAD_TOKENS)]
    nats = [cross_entropy(head(hidden_SD[part]).double(), labels_S[part], reduction="none") for part in parts]
    sums: list[float] = torch.cat(nats).view_as(batch.labels_BT).sum(dim=1).tolist()
    return sums
