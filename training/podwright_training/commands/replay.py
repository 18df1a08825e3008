"""``podwright-train replay``: reads the batch of a step again and shows what is in it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from podwright_training.batch import Batch
from podwright_training.checkpoint import step_folder
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import TrainConfig
from podwright_training.data import load_tokenizer, open_stream
from podwright_training.errors import UserError
from podwright_training.loop.metrics import batch_hash, digest_text
from podwright_training.loop.preflight import SPLITS, checkpoint_directories
from podwright_training.model import LlamaForCausalLM
from podwright_training.run_folder import RunFolder

BEGINNING_TOKENS = 24
BEGINNING_CHARACTERS = 72


class ReplayError(UserError):
    """The batch cannot be read again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train replay``."""
    parser.add_argument("--run_dir", type=Path, required=True, help="folder of the run, finished or not")
    parser.add_argument("--step", type=int, required=True, help="a step that the metrics tell of")
    parser.add_argument(
        "--losses", action="store_true", help="each sequence's loss too, under the weights of the checkpoint before"
    )


def run(args: argparse.Namespace) -> int:
    """Print each sequence of the batch with the beginnings of its documents; exit status."""
    folder = RunFolder(args.run_dir)
    event = _event(folder, args.step)
    options = load_file(folder.config)
    tokenizer = load_tokenizer(options.tokenizer)
    before = _checkpoint_before(options, event)
    batches = _read(options, tokenizer, event, before)
    model = _model(options, before) if args.losses else None
    first = event["sequences"] - event["batch_sequences"]
    print(
        f"step {args.step}: sequences {first} to {event['sequences'] - 1}, digest {event['batch_digest']}, as then"
        + (f"; losses after step {step_folder.read_state(before).step if before else 0}" if model else "")
    )
    for number, batch in enumerate(batches, start=first):
        print(f"sequence {number}" + (f" | loss {_loss(model, batch):.4f}" if model else ""))
        for beginning in _beginnings(batch.tokens_BT[0], tokenizer):
            print(f"    {beginning}")
    return 0


def _event(folder: RunFolder, step: int) -> dict[str, Any]:
    """What the metrics tell of a step: why it was left out if it was, else the last."""
    events = [event for event in folder.events() if event["event"] in {"train", "guard", "overflow"}]
    of_step = [event for event in events if event["step"] == step]
    bad = [event for event in of_step if event["event"] != "train"]
    if not of_step:
        nearest = sorted({event["step"] for event in events}, key=lambda other: abs(other - step))[:3]
        hint = f"; the nearest told are {', '.join(map(str, sorted(nearest)))}" if nearest else ""
        raise ReplayError(f"{folder.metrics} tells nothing of step {step}{hint}")
    return (bad or of_step)[-1]


def _checkpoint_before(options: TrainConfig, event: dict[str, Any]) -> Path | None:
    """The last checkpoint from which the data leads to the batch; ``None`` if only its beginning does."""
    first = event["sequences"] - event["batch_sequences"]
    paths = chain.from_iterable(step_folder.intact(directory) for directory in checkpoint_directories(options))
    positions = {path: step_folder.read_state(path).sequences for path in paths}
    return max((path for path in positions if positions[path] <= first), key=positions.__getitem__, default=None)


def _read(
    options: TrainConfig, tokenizer: PreTrainedTokenizerBase, event: dict[str, Any], before: Path | None
) -> list[Batch]:
    """The sequences of the batch, one by one; raises ``ReplayError`` if they are not those trained on."""
    stream = open_stream(
        replace(options, data_workers=0),
        split=SPLITS[0],
        tokenizer=tokenizer,
        rank=0,
        world_size=1,
        local_batch_size=1,
    )
    position = 0
    if before:
        state = step_folder.read_state(before)
        stream.load_state_dict(state.data)
        position = state.sequences
    for _ in range(event["sequences"] - event["batch_sequences"] - position):
        stream.next_batch()
    batches = [stream.next_batch() for _ in range(event["batch_sequences"])]
    digest = digest_text(batch_hash(batch.tokens_BT[0] for batch in batches))
    if digest != event["batch_digest"]:
        raise ReplayError(
            f"the batch read now has digest {digest}, that of step {event['step']} had {event['batch_digest']}: "
            f"dataset {options.dataset} or tokenizer {options.tokenizer} has changed"
        )
    return batches


def _model(options: TrainConfig, before: Path | None) -> LlamaForCausalLM:
    """The whole model on the CPU, as the checkpoint has it, or new."""
    model = LlamaForCausalLM(step_folder.model_config(before) if before else options.model)
    if before:
        step_folder.load_weights(model, before)
    else:
        model.init_weights(seed=options.seed)
    return model.eval()


@torch.no_grad()
def _loss(model: LlamaForCausalLM, batch: Batch) -> float:
    total: Tensor = model(batch.tokens_BT, labels_BT=batch.labels_BT)
    return total.item() / batch.counted_tokens


def _beginnings(tokens_T: Tensor, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The first words of every document that has a part in the sequence."""
    ends_D = (tokens_T == tokenizer.eos_token_id).nonzero().flatten() + 1
    for document in tokens_T.tensor_split(ends_D):
        if len(document):
            text = " ".join(tokenizer.decode(document[:BEGINNING_TOKENS]).split())
            yield f"{text[:BEGINNING_CHARACTERS]!r}, {len(document)} tokens"
