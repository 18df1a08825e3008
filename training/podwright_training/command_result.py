"""Print the result of a command: text for people or, with ``--json``, one JSON document for programs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from podwright_training.json_text import to_json


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def print_result(args: argparse.Namespace, text: str, document: Mapping[str, Any]) -> None:
    """Print a command's text or, with ``--json``, its document, whose paths become text."""
    print(to_json(document, indent=2, default=str) if args.json else text)
