"""``podwright-train train`` before torch is there: ``--help`` and a wrong option need not wait for its import."""

from __future__ import annotations

import argparse

from podwright_training.config import sources
from podwright_training.ranks import Ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option of ``TrainConfig`` is a flag."""
    sources.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train, or go on training, until ``max_steps`` or a signal."""
    config, ranks = sources.load(args), Ranks.from_environment()
    from podwright_training.loop import trainer  # seconds

    trainer.run(config, ranks)
    return 0
