"""Compare the trainer with its peers on one GPU.

    python bench/train_gpu.py [--rounds 5] [--sequence 8192 2048]

Smallest: python bench/train_gpu.py --device cpu --preset tiny --sequence 256 --tokens 1024 --rounds 1 --steps 5

Llama 3.2 1B in bf16, compiled, nothing recomputed, 16,384 tokens per step. Two of ours: one that lets tokens see all
before them, as the plain loops do, and one that keeps documents apart, as torchtitan does. Peak memory is what was
allocated on the GPU; MFU is of the rate of one large product of matrices, measured first.

``--reference`` is ``3.test_cases/pytorch/FSDP/src`` of a checkout of https://github.com/awslabs/awsome-distributed-ai.
``--peer-python`` is a Python that has the peers already. What costs a save: ``bench/checkpoint.py --hidden-size 2048
--num-layers 16 --context 2048 --batch 8``.

The smallest case shows on a machine without a GPU that all sides run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from side_by_side import OURS, Match, options_of_work, peer_python, print_table

TOKENIZER_SIZE = 32000
PRODUCT = 8192  # rows and columns of the matrices whose product says what the GPU can do


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=3, help="first steps of each run that do not count")
    parser.add_argument("--sequence", type=int, nargs="+", default=[8192, 2048])
    parser.add_argument("--tokens", type=int, default=16384, help="per step")
    parser.add_argument("--preset", default="llama3_2_1b")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--reference", type=Path, help="the folder of the reference's train.py")
    parser.add_argument("--peer-python", type=Path)
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --preset tiny --sequence 256 --tokens 1024 runs")
    peak_flops = _measured_peak_flops() if on_gpu else None
    for sequence in args.sequence:
        options = {
            "preset": args.preset,
            "max_context_width": sequence,
            "train_batch_size": args.tokens // sequence,
            "max_steps": args.steps,
            "bf16": on_gpu,
            "compile": on_gpu,
            "device": args.device,
        }
        match = Match(
            title=f"{args.preset}, {sequence} tokens",
            options={**options_of_work(vocab_size=2048 if args.preset == "tiny" else TOKENIZER_SIZE), **options},
            ranks=1,
            warm_up=args.warm_up,
            python=args.peer_python or peer_python(),
        )
        print_table(match, match.play(_sides(match, args.reference), rounds=args.rounds), peak_flops=peak_flops)


def _sides(match: Match, reference: Path | None) -> dict[str, list[str]]:
    sides = {
        OURS: match.ours(),
        f"{OURS}, documents apart": match.ours(document_mask=True, attention="flex"),
        "torchtitan": match.peer("titan.py"),
        "plain FSDP2": match.peer("plain_loop.py", "--wrap=fsdp2"),
        "HF Trainer": match.peer("hf_trainer.py"),
    }
    if reference:
        sides["reference"] = match.peer("reference.py", f"--reference={reference.resolve()}")
    return sides


def _measured_peak_flops() -> float:
    """FLOP/s of the product of two large matrices of random numbers in bf16, which GPUs multiply slower than zeros."""
    a, b = torch.randn(2, PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16)
    seconds = []
    for _ in range(50):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.mm(a, b)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    peak_flops = 2 * PRODUCT**3 / statistics.median(seconds)
    del a, b
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}: {peak_flops / 1e12:.0f} TFLOP/s in a product of matrices", flush=True)
    return peak_flops


if __name__ == "__main__":
    main()
