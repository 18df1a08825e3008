"""``podwright-train schema``: print the JSON Schema of run.yaml, of job.yaml, or of a command's JSON document."""

from __future__ import annotations

import argparse
import json

from podwright_training.config.run_schema import run_schema
from podwright_training.documents import DOCUMENTS, document_schema
from podwright_training.errors import UserError
from podwright_training.jobs.job_schema import job_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``podwright-train schema``."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=list(DOCUMENTS),
        metavar="COMMAND",
        help=f"print the schema of this command's --json output: {', '.join(DOCUMENTS)}. Default: run.yaml's",
    )
    parser.add_argument("--job", action="store_true", help="print the schema of job.yaml. Default: run.yaml's")


def run(args: argparse.Namespace) -> int:
    """Print the schema.

    Raises:
        UserError: A command and ``--job`` are given.
    """
    if args.what and args.job:
        raise UserError(f"got {args.what} and --job, need one of them")
    of_file = job_schema if args.job else run_schema
    print(json.dumps(document_schema(args.what) if args.what else of_file(), indent=1))
    return 0
