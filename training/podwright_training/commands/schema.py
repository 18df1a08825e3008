"""``podwright-train schema``: print the JSON Schema of run.yaml, or of job.yaml."""

from __future__ import annotations

import argparse
import json

from podwright_training.config.json_schema import run_schema
from podwright_training.jobs.json_schema import job_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag of ``podwright-train schema``."""
    parser.add_argument("--job", action="store_true", help="print that of job.yaml. Default: run.yaml's")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    print(json.dumps(job_schema() if args.job else run_schema(), indent=1))
    return 0
