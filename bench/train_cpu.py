"""Compare the trainer with its peers on CPUs.

    python bench/train_cpu.py [--rounds 5] [--steps 12] [--case fp32-v2048]

Smallest: python bench/train_cpu.py --rounds 1 --steps 4 --case fp32-v2048

Two gloo ranks of one thread train the same small Llama (4 layers of 256, 512 tokens, 8 sequences per rank) on the same
prose. Peak memory is the largest resident size of any process of a run.
"""

from __future__ import annotations

import argparse

from side_by_side import OURS, Match, options_of_work, peer_python, print_table

CASES = {
    "fp32-v2048": ("fp32", 2048),
    "bf16-v2048": ("bf16", 2048),
    "fp32-v32000": ("fp32", 32000),
    "bf16-v32000": ("bf16", 32000),
}
SHAPE = {
    "hidden_size": 256,
    "num_layers": 4,
    "num_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 768,
    "max_context_width": 512,
    "train_batch_size": 8,
}


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=3, help="first steps of each run that do not count")
    parser.add_argument("--case", choices=CASES, action="append")
    args = parser.parse_args()
    for case in args.case or CASES:
        precision, vocab_size = CASES[case]
        options = {"vocab_size": vocab_size, "precision": precision, "max_steps": args.steps, "device": "cpu"}
        match = Match(
            title=case,
            options={**options_of_work(vocab_size=vocab_size), **SHAPE, **options},
            ranks=2,
            warm_up=args.warm_up,
            python=peer_python(),
        )
        sides = {
            OURS: match.ours(),
            "plain DDP": match.peer("plain_loop.py", "--wrap=ddp"),
            "plain FSDP2": match.peer("plain_loop.py", "--wrap=fsdp2"),
            "HF Trainer": match.peer("hf_trainer.py"),
            "torchtitan": match.peer("titan.py"),
        }
        print_table(match, match.play(sides, rounds=args.rounds))


if __name__ == "__main__":
    main()
