"""``podwright schema``: the JSON Schema of cluster.yaml, for editors, and those of commands' JSON documents."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from podwright import checkout
from podwright.operations.target import add_examples
from podwright.output_file import write_output

OK = 0
CLUSTER = "cluster.yaml"
COMMANDS = (  # that have --json
    "adopt",
    "align",
    "bundle",
    "cancel",
    "check",
    "deploy",
    "destroy",
    "doctor",
    "drift",
    "explain",
    "export",
    "fetch",
    "import",
    "init",
    "jobs",
    "logs",
    "move",
    "nodes",
    "outputs",
    "plan",
    "policy",
    "rehearse",
    "scale",
    "setup",
    "ssh-config",
    "state",
    "status",
    "submit",
    "teardown",
    "update-software",
    "validate",
)
EXAMPLES = checkout.ROOT / "examples"
CLUSTER_SCHEMA, RUN_SCHEMA = Path(".podwright/cluster.schema.json"), Path(".podwright/run.schema.json")
_MODELINE = "# yaml-language-server: $schema="  # https://github.com/redhat-developer/yaml-language-server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the document to describe, and the file to write."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=[CLUSTER, *COMMANDS],
        default=CLUSTER,
        metavar="WHAT",
        help=f"{CLUSTER}, for editors, or the command whose --json it describes: {', '.join(COMMANDS)}. "
        f"Default: {CLUSTER}",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write. Default: print the schema")
    add_examples(
        parser,
        "podwright schema",
        f"podwright schema -o {CLUSTER_SCHEMA}  # as `podwright init`",
        "podwright schema check",
    )


def run(options: argparse.Namespace) -> int:
    """Print or write the schema."""
    if options.what == CLUSTER:
        text, described = cluster_text(), CLUSTER
    else:
        from podwright.operations.json_documents.documents import document_text

        text, described = document_text(options.what), f"`podwright {options.what} --json`"
    if options.output:
        write_output(options.output, text)
        print(f"{options.output}: the JSON Schema of {described}")
    else:
        print(text, end="")
    return OK


def cluster_text() -> str:
    """Return the schema of cluster.yaml as text; the examples that come with podwright are its examples."""
    from podwright.check.json_schema import cluster_schema

    return json.dumps(cluster_schema(EXAMPLES), indent=1) + "\n"


def run_text() -> str:
    """Return the schema of run.yaml as text. Needs podwright-training."""
    from podwright_training.config.run_schema import run_schema

    return json.dumps(run_schema(), indent=1) + "\n"


def with_header(text: str, schema: Path) -> str:
    """Return a YAML file whose first line names its schema, in place of the one that it had."""
    first_line, newline, following_lines = text.partition("\n")
    body = following_lines if first_line.startswith(_MODELINE) else first_line + newline + following_lines
    return f"{_MODELINE}{schema}\n{body}"
