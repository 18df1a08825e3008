"""``podwright move``: take a cluster, its files, people, accounts and jobs to another zone or region.

The steps and everything that they import are loaded when the command runs, so that ``--help`` stays quick.
"""

from __future__ import annotations

import argparse

from podwright.config_file import add_file
from podwright.operations.target import add_examples, add_profile
from podwright_common.command_line import add_json, add_yes

# The order is that of podwright.operations.moving.steps, which --help need not load.
STEP_NAMES = (
    *("first-backup", "hold", "record", "last-backup", "foundation", "bucket", "cluster", "accounts", "verify", "jobs"),
)
SAVE_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the file, the destination, and the last step."""
    add_file(parser, "settings of the old cluster. ")
    place = parser.add_argument_group("destination, for a new move")
    place.add_argument("--zone", metavar="ID", help="id of the new Availability Zone, such as usw2-az2")
    place.add_argument("--region", help="new region. Default: the old cluster's")
    place.add_argument(
        "--training-plan",
        metavar="ARN",
        help="new training plan for the groups that have one; for all compute groups if no group has one",
    )
    place.add_argument("--name", help="name of the new cluster. Default: the old one's with the zone")
    place.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change another value in the new file; may be repeated",
    )
    how = parser.add_argument_group("how far")
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="show changes, data and prices, or the steps of a move under way, and end",
    )
    how.add_argument("--until", choices=STEP_NAMES, metavar="STEP", help=f"end after a step: {', '.join(STEP_NAMES)}")
    how.add_argument(
        "--save-s",
        type=_seconds,
        default=SAVE_S,
        metavar="S",
        help="seconds that jobs get to save. Default: %(default)g",
    )
    how.add_argument("--leave-jobs", action="store_true", help="leave out jobs that the new cluster's Slurm refuses")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--status", action="store_true", help="show the steps that are done, and end")
    goal.add_argument("--back", action="store_true", help="destroy the new cluster and start the old one's jobs again")
    goal.add_argument("--destroy-old", action="store_true", help="destroy the old cluster, its files and the backups")
    parser.add_argument("--empty-bucket", action="store_true", help="delete all objects of a bucket that is destroyed")
    add_profile(parser)
    add_yes(parser)
    add_json(parser)
    add_examples(
        parser,
        "podwright move --zone usw2-az2 --dry-run",
        "podwright move --zone use1-az6 --region us-east-1 --training-plan ARN --until first-backup",
        "podwright move --destroy-old",
    )


def run(options: argparse.Namespace) -> int:
    """Begin a move, or continue the one that the journal beside the file records.

    Raises:
        PodwrightError: the file or the destination is wrong, a step fails, or AWS refuses.
    """
    from podwright.operations.moving import move_command

    return move_command.run(options)


def _seconds(text: str) -> float:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text}, need a whole number of seconds")
    return float(text)
