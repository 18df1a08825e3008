"""``podwright-train replay``: read the batch of a step again and show its documents."""

from __future__ import annotations

import argparse
from pathlib import Path

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.run_variables import add_secrets_flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train replay``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run, finished or not")
    parser.add_argument("--step", type=int, required=True, help="a step in the metrics")
    parser.add_argument(
        "--losses",
        action="store_true",
        help="also print each sequence's loss under the weights of the last checkpoint before",
    )
    add_secrets_flag(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print each sequence of the batch with the first words of its documents; return the exit status."""
    from podwright_training.loop.batch_replay import replay  # seconds
    from podwright_training.run_folder import RunFolder

    replayed = replay(RunFolder(args.run_dir), args.step, losses=args.losses)
    print_result(args, "\n".join(replayed.lines()), replayed)
    return 0
