"""``podwright-train generate``: a few lines of text from the consolidated model, by Hugging Face's loaders alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder, write_atomically

PROMPTS = ("The", "In this chapter,", "If you want to", "It is not possible to")  # a token begins with its space
TOP_K = 50


class GenerateError(UserError):
    """There is no model to generate from; the message says how to make one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train generate``."""
    parser.add_argument("--run_dir", type=Path, required=True, help="folder of a run that was consolidated")
    parser.add_argument(
        "--prompts", nargs="+", default=list(PROMPTS), metavar="TEXT", help=f"to go on from {list(PROMPTS)}"
    )
    parser.add_argument("--max_new_tokens", type=int, default=64, help="per prompt [64]")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token [0.8]")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same text [0]")


def run(args: argparse.Namespace) -> int:
    """Generate, print and write ``samples.txt``; exit status."""
    folder = RunFolder(args.run_dir)
    texts = generate(
        folder.hf,
        args.prompts,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    write_atomically(folder.samples, "\n\n".join(texts) + "\n")
    print(folder.samples.read_text(), end="")
    return 0


def generate(folder: Path, prompts: list[str], *, max_new_tokens: int, temperature: float, seed: int) -> list[str]:
    """One text per prompt, each beginning with it, sampled from the model in ``folder``.

    Raises:
        GenerateError: ``folder`` holds no model, or a number is out of range.
    """
    if max_new_tokens < 1 or temperature < 0:
        raise GenerateError(
            f"max_new_tokens = {max_new_tokens} must be at least 1, temperature = {temperature} at least 0"
        )
    if not (folder / "config.json").exists():
        raise GenerateError(
            f"{folder} holds no model: run `podwright-train consolidate --run_dir {folder.parent}` first"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    sampling = {"do_sample": True, "temperature": temperature, "top_k": TOP_K} if temperature else {"do_sample": False}
    texts = []
    for prompt in prompts:
        torch.manual_seed(seed)  # for each: a text does not depend on the prompts before it
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        tokens = model.generate(**ids, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.eos_token_id, **sampling)
        texts.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return texts
