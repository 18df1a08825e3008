"""``podwright-train evaluate``: perplexity of the consolidated model under transformers, on the validation batches."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_training.commands.generate import PROMPTS, continue_texts
from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.harness import PROGRAM, run_tasks
from podwright_training.ranks import Ranks
from podwright_training.run_folder import ORIGIN, RunFolder, write_atomically
from podwright_training.transformers_model import LoadedModel, default_device, load

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
    """Print the evaluation as JSON and keep it in the run folder, for its report; return the exit status.

    Ranks that torchrun started share the work; the first one prints.
    """
    with _process_group() as ranks:
        folder = RunFolder(Path(args.run_dir))
        found = evaluate(folder, device=args.device, dtype=args.dtype)
        if args.all_checkpoints:
            found["progression"] = list(
                progression(folder, args.prompts, tokens=found["tokens"], device=args.device, dtype=args.dtype)
            )
        if ranks.rank == 0:
            _keep(found, folder, args)
    return 0


def _keep(found: dict[str, Any], folder: RunFolder, args: argparse.Namespace) -> None:
    if args.tasks:
        found["tasks"] = run_tasks(
            folder.hf,
            args.tasks,
            program=args.lm_eval,
            include_path=args.include_path,
            device=args.device or default_device(),
            dtype=args.dtype,
        )
    text = json.dumps(found, indent=2)
    write_atomically(folder.evaluation, text + "\n")
    print(text)


@contextmanager
def _process_group() -> Iterator[Ranks]:
    """Connect the ranks, if torchrun started several; they exchange nothing but sums."""
    ranks = Ranks.from_environment()
    if ranks.world_size == 1:
        yield ranks
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


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
    by_source = _sums(load(folder.hf, device=device, dtype=dtype), load_run(folder), tokens=tokens)
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

    options, first = load_run(folder), Ranks.from_environment().rank == 0
    for path in reversed(step_folder.intact(options.checkpoints)):
        loaded = load(path, tokenizer=options.tokenizer, device=device, dtype=dtype)
        figures = sum(_sums(loaded, options, tokens=tokens).values(), Sums()).figures()
        texts = continue_texts(loaded, prompts, max_new_tokens=SAMPLE_TOKENS, do_sample=False) if first else []
        yield {"step": step_folder.read_state(path).step, **figures, "samples": texts}


def _sums(loaded: LoadedModel, options: TrainConfig, *, tokens: int) -> dict[str, Sums]:
    """Return the counts on the first ``tokens`` of the validation split, by source.

    They are the same tokens for any number of ranks, each of which reads and judges its own.
    """
    import torch

    from podwright_training.data import open_stream

    ranks, device = Ranks.from_environment(), loaded.model.device
    try:
        stream = open_stream(
            replace(options, data_workers=0),  # a few batches: workers would only have to be started
            split="validation",
            tokenizer=loaded.tokenizer,
            rank=ranks.rank,
            world_size=ranks.world_size,
            local_batch_size=options.val_batch_size,
        )
    except ValueError as error:  # the number of ranks
        raise UserError(str(error)) from error
    sequences = tokens // options.max_context_width
    by_source: dict[str, Sums] = {}
    with torch.no_grad():
        for _ in range(math.ceil(sequences / (ranks.world_size * options.val_batch_size))):
            batch = stream.next_batch()
            count = len(stream.own_sequences(before=sequences))  # of the last batch, some may be too many
            nats = _cross_entropy(loaded.model, batch.to(device))[:count]
            for name, row, labels_T in zip(stream.sources()[:count], nats, batch.labels_BT[:count], strict=True):
                text = loaded.tokenizer.decode(labels_T, skip_special_tokens=True)
                by_source[name] = by_source.get(name, Sums()) + Sums(row, len(labels_T), len(text.encode()))
    return _of_all_ranks(by_source, ranks)


def _of_all_ranks(by_source: dict[str, Sums], ranks: Ranks) -> dict[str, Sums]:
    """Return the counts of all ranks, added up, by source."""
    if ranks.world_size == 1:
        return by_source
    import torch.distributed as dist

    parts: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(parts, by_source)
    names = sorted({name for part in parts for name in part})
    return {name: sum((part.get(name, Sums()) for part in parts), Sums()) for name in names}


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
