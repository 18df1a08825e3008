"""``podwright-train schema``: print the JSON Schema of run.yaml."""

from __future__ import annotations

import argparse
import json

from podwright_training.config.json_schema import run_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no flag: the schema is for an editor, or a file."""


def run(args: argparse.Namespace) -> int:  # noqa: ARG001 -- as every command
    """Print it."""
    print(json.dumps(run_schema(), indent=1))
    return 0
