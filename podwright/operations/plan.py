"""``podwright plan``: estimate memory, speed, days and dollars of a training run."""

from __future__ import annotations

import argparse

from podwright_common.command_line import add_examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the planner."""
    from podwright.planning.arguments import add_arguments as add_planning_arguments

    add_planning_arguments(parser)
    add_examples(
        parser,
        "podwright plan --model llama3_1_8b --instance ml.p5.48xlarge --nodes 4 --tokens 100B",
        "podwright plan --run run.yaml --instance ml.p5.48xlarge --nodes 4 --search",
    )


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    from podwright.planning import command

    return command.run(options)
