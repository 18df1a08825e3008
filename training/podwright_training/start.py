"""``podwright-train train`` before torch is there: ``--help`` and a wrong option need not wait for its import."""

from __future__ import annotations

import argparse

from podwright_training import options
from podwright_training.ranks import Ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option of ``TrainConfig`` is a flag."""
    options.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train, or go on training, until ``max_steps`` or a signal."""
    config, ranks = options.load(args), Ranks.from_environment()
    from podwright_training import train  # seconds

    train.run(config, ranks)
    return 0
