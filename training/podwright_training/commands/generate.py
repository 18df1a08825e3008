"""``podwright-train generate``: sample text from the consolidated model, loaded by Hugging Face alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from podwright_training.errors import UserError
from podwright_training.openmp import sleep_when_idle
from podwright_training.run_folder import RunFolder, write_atomically

PROMPTS = ("The", "In this chapter,", "If you want to", "It is not possible to")  # a token begins with its space
TOP_K = 50


class GenerateError(UserError):
    """Text cannot be generated; the message says why and what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train generate``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of a consolidated run")
    parser.add_argument(
        "--prompts", nargs="+", default=list(PROMPTS), metavar="TEXT", help=f"prompts to continue {list(PROMPTS)}"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="new tokens per prompt. Default: 64")
    parser.add_argument("--temperature", type=float, default=0.8, help="sampling temperature; 0: greedy. Default: 0.8")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the likeliest tokens of this share. Default: 1.0"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed. Default: 0")
    parser.add_argument("--device", help="torch device. Default: cuda where there is one, else cpu")


def run(args: argparse.Namespace) -> int:
    """Generate text, print it and write ``samples.txt``; return the exit status."""
    folder = RunFolder(args.run_dir)
    texts = generate(
        folder.hf,
        args.prompts,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        device=args.device,
        stream=sys.stdout.isatty(),
    )
    write_atomically(folder.samples, "\n\n".join(texts) + "\n")
    if not sys.stdout.isatty():
        print(folder.samples.read_text(), end="")
    return 0


def generate(
    folder: Path,
    prompts: list[str],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    top_p: float = 1.0,
    device: str | None = None,
    stream: bool = False,
) -> list[str]:
    """Return one text per prompt, starting with the prompt, sampled from the model in ``folder``.

    Args:
        folder: a model and its tokenizer, in Hugging Face's layout.
        prompts: texts to continue.
        max_new_tokens: per text.
        temperature: 0: the likeliest token each time.
        seed: of each text.
        top_p: sample from the likeliest tokens whose probabilities add up to this.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        stream: print the texts while they grow.

    Raises:
        GenerateError: ``folder`` has no model, or a number is out of range.
    """
    if max_new_tokens < 1 or temperature < 0:
        raise GenerateError(f"got max_new_tokens {max_new_tokens} and temperature {temperature}, need at least 1 and 0")
    if not 0 < top_p <= 1:
        raise GenerateError(f"got top_p {top_p}, need a number above 0, at most 1")
    if not (folder / "config.json").exists():
        raise GenerateError(f"{folder} has no model: run `podwright-train consolidate --run-dir {folder.parent}` first")
    sleep_when_idle()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": TOP_K, "top_p": top_p}
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if stream else None
    texts = []
    for prompt in prompts:
        torch.manual_seed(seed)  # per prompt: a text does not depend on the prompts before it
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
        tokens = model.generate(
            **ids, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.eos_token_id, streamer=streamer, **sampling
        )
        texts.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return texts
