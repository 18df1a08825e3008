"""Print the result of a command: text for people or, with ``--json``, one JSON document for programs."""

from __future__ import annotations

import argparse

from podwright_training.json_document import to_values
from podwright_training.json_text import to_json


def print_result(args: argparse.Namespace, text: str, document: object) -> None:
    """Print a command's text or, with ``--json``, its document, which is a dataclass."""
    if args.json:
        print_document(document)
    else:
        print(text)


def print_document(document: object) -> None:
    """Print a document, which is a dataclass, as JSON."""
    print(to_json(to_values(document), indent=2))
