"""The answer of a command: text for people or, with ``--json``, one document for programs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from podwright_training.json_text import to_json


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def answer(args: argparse.Namespace, text: str, document: Mapping[str, Any]) -> None:
    """Print the text or, with ``--json``, the document; its paths become text."""
    print(to_json(document, indent=2, default=str) if args.json else text)
