"""``podwright bundle``: download programs and packages for nodes without internet."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from podwright.config_file import add_file
from podwright.operations.output import print_document
from podwright_common.command_line import add_examples, add_json
from podwright_common.exit_status import OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --output, --upload, --python and --json."""
    add_file(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder to write the bundle to. Default: .cache/bundle"
    )
    parser.add_argument("--upload", action="store_true", help="upload it to the cluster's bucket, for the nodes")
    parser.add_argument("--python", default="3.10", metavar="X.Y", help="Python of the nodes. Default: %(default)s")
    add_json(parser)
    add_examples(parser, "podwright bundle -o bundle", "podwright bundle --upload")


def run(options: argparse.Namespace) -> int:
    """Build the bundle, and upload it on request."""
    from podwright.check.load import load
    from podwright.operations.deployment import offline_bundle

    # The progress that a build prints is no part of the JSON document.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        summary = offline_bundle.build(load(options.file), options.output, python=options.python, upload=options.upload)
    if options.json:
        print_document(summary)
    return OK
