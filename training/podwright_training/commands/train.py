"""``podwright-train train``: parse options before torch is imported, so that ``--help`` and errors are fast."""

from __future__ import annotations

import argparse

from podwright_common.garbage import lasting_imports
from podwright_training.config import sources
from podwright_training.ranks import Ranks
from podwright_training.run_variables import read_variables, variables_in_use


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per option of ``TrainConfig``."""
    sources.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train, or resume training, until ``max_steps`` or a signal."""
    config, ranks = sources.load_with_variables(args), Ranks.from_environment()
    with variables_in_use(read_variables(config.env, config.secrets)):
        with lasting_imports():
            from podwright_training.loop.run import run  # This import takes seconds, and reads variables.

        run(config, ranks)
    return 0
