"""``podwright-train generate``: sample text from any checkpoint or model, by transformers alone."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.config.sources import load_run
from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder, require_own, write_atomically
from podwright_training.run_variables import add_secrets_flag
from podwright_training.transformers_model import LoadedModel, load_model

PROMPTS = ("The", "In this chapter,", "If you want to", "It is not possible to")  # a token begins with its space
TOP_K = 50
SMALLEST_TEMPERATURE = 1e-5  # Sampling with a smaller one is greedy, and divides logits to infinity.
LARGEST_SEED = 2**63 - 1


class GenerateError(UserError):
    """Generating text failed; the message has the reason and the solution."""


@dataclass(frozen=True)
class GeneratedTexts:
    """The document of `podwright-train generate --json`.

    Attributes:
        prompts: Texts that were continued.
        texts: The same with their continuations.
    """

    prompts: list[str]
    texts: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train generate``."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run-dir", type=Path, help="folder of a run: its exported model, else its newest checkpoint")
    which.add_argument("--model", type=Path, help="folder of any model in Hugging Face's layout")
    parser.add_argument("--step", type=int, help="step of a checkpoint of --run-dir; it need not be exported")
    parser.add_argument(
        "--prompts", nargs="+", default=list(PROMPTS), metavar="TEXT",
        help=f"prompts to continue. Default: {shlex.join(PROMPTS)}",
    )  # fmt: skip
    parser.add_argument("--max-new-tokens", type=int, default=64, help="new tokens per prompt. Default: 64")
    parser.add_argument("--temperature", type=float, default=0.8, help="sampling temperature; 0: greedy. Default: 0.8")
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="sample from the likeliest tokens whose probabilities add up to this. Default: 1.0",
    )
    parser.add_argument(
        "--top-k", type=int, default=TOP_K,
        help=f"sample from so many of the likeliest tokens; 0: from all. Default: {TOP_K}",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="random seed. Default: 0")
    parser.add_argument("--device", help="torch device. Default: cuda where there is one, else cpu")
    add_secrets_flag(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Generate text and print it; write that of a run to its ``samples.txt``. Return the exit status."""
    _check(args)
    if args.run_dir:
        require_own(args.run_dir)
    folder, tokenizer = _source(args)
    streams = sys.stdout.isatty() and not args.json
    texts = generate(
        folder,
        args.prompts,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        tokenizer=tokenizer,
        device=args.device,
        stream=streams,
    )
    text = "\n\n".join(texts) + "\n"
    if args.run_dir:
        write_atomically(RunFolder(args.run_dir).samples, text)
    if not streams:
        print_result(args, text.removesuffix("\n"), GeneratedTexts(args.prompts, texts))
    return 0


def generate(
    folder: Path,
    prompts: list[str],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    top_p: float = 1.0,
    top_k: int = TOP_K,
    tokenizer: str | None = None,
    device: str | None = None,
    stream: bool = False,
) -> list[str]:
    """Return one text per prompt, starting with the prompt, sampled from the model in ``folder``.

    Args:
        folder: a model and its tokenizer in Hugging Face's layout, or a checkpoint.
        prompts: texts to continue.
        max_new_tokens: per text.
        temperature: 0: the likeliest token each time.
        seed: of each text.
        top_p: sample from the likeliest tokens whose probabilities add up to this.
        top_k: sample from so many of the likeliest tokens; 0: from all.
        tokenizer: of a checkpoint.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        stream: print the texts while they grow.

    Raises:
        UserError: ``folder`` has no model.
    """
    loaded = load_model(folder, tokenizer=tokenizer, device=device)
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature >= SMALLEST_TEMPERATURE:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    return continue_texts(loaded, prompts, max_new_tokens=max_new_tokens, seed=seed, stream=stream, **sampling)


def continue_texts(
    loaded: LoadedModel,
    prompts: list[str],
    *,
    max_new_tokens: int,
    seed: int = 0,
    stream: bool = False,
    **sampling: Any,
) -> list[str]:
    """Return each prompt with the model's continuation; transformers keeps the keys and values of earlier tokens.

    Args:
        loaded: model and tokenizer.
        prompts: texts to continue.
        max_new_tokens: per text; fewer where the model's length ends before.
        seed: of each text.
        stream: print the texts while they grow.
        sampling: arguments of transformers' ``generate``.
    """
    import torch
    from transformers import TextStreamer

    model, tokenizer = loaded.model, loaded.tokenizer
    length = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if stream else None
    encoded_prompts = [loaded.encode(prompt) for prompt in prompts]
    _check_lengths(list(map(len, encoded_prompts)), length, max_new_tokens)
    texts = []
    for ids in encoded_prompts:
        torch.manual_seed(seed)  # per prompt: a text does not depend on the prompts before it
        ids_BT = torch.tensor([ids], device=model.device)
        tokens = model.generate(
            input_ids=ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=min(max_new_tokens, length - len(ids)),
            pad_token_id=tokenizer.eos_token_id,
            streamer=streamer,
            **sampling,
        )
        texts.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return texts


def _check_lengths(prompt_lengths: Sequence[int], positions: int, max_new_tokens: int) -> None:
    """Warn if the model's positions end before a text does.

    Raises:
        GenerateError: A prompt fills them.
    """
    for number, length in enumerate(prompt_lengths, 1):
        if length >= positions:
            raise GenerateError(
                f"prompt {number} has {length} tokens, and the model has {positions} positions: need at most "
                f"{positions - 1} tokens"
            )
    room = positions - max(prompt_lengths)
    if room < max_new_tokens:
        message = f"the model has {positions} positions, so a text ends after {room} of {max_new_tokens} new tokens"
        print(f"warning: {message}", file=sys.stderr)


def _check(args: argparse.Namespace) -> None:
    if args.max_new_tokens < 1:
        raise GenerateError(f"got max_new_tokens {args.max_new_tokens}, need at least 1")
    if not 0 <= args.temperature < math.inf:
        raise GenerateError(f"got temperature {args.temperature}, need a finite number, 0 or more")
    if not 0 <= args.seed <= LARGEST_SEED:
        raise GenerateError(f"got seed {args.seed}, need 0 to {LARGEST_SEED}")
    if not 0 < args.top_p <= 1:
        raise GenerateError(f"got top_p {args.top_p}, need a number above 0, at most 1")
    if args.top_k < 0:
        raise GenerateError(f"got top_k {args.top_k}, need 0 (all tokens) or more")
    if args.step is not None and args.model:
        raise GenerateError("got --step with --model: only --run-dir has steps")


def _source(args: argparse.Namespace) -> tuple[Path, str | None]:
    """Return the folder of model or checkpoint, and the tokenizer of a checkpoint."""
    if args.model:
        return args.model, None
    folder = RunFolder(args.run_dir)
    if args.step is None and (folder.hf / "config.json").exists():
        return folder.hf, None
    from podwright_training.checkpoint import step_folder

    config = load_run(folder)
    return step_folder.find(config.checkpoints, args.step), config.tokenizer
