"""``podwright schema``: the JSON Schema of cluster.yaml, for editors, and those of commands' JSON documents."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path

from podwright import checkout
from podwright.operations.target import add_examples
from podwright.output_file import write_output
from podwright_common.exit_status import OK

CLUSTER = "cluster.yaml"
# Module and name of the document, by the command that prints it with --json.
DOCUMENTS = {
    "adopt": "podwright.operations.deployment.adopt:Adopt",
    "align": "podwright.operations.deployment.align:Align",
    "bundle": "podwright.operations.deployment.offline_bundle:Bundle",
    "cancel": "podwright.operations.jobs.cancel:Cancel",
    "capacity": "podwright.operations.capacity.capacity:Capacity",
    "check": "podwright.check.findings:Check",
    "deploy": "podwright.operations.deployment.deploy:Deploy",
    "destroy": "podwright.operations.deployment.destroy:Destroy",
    "doctor": "podwright.operations.health.doctor:Doctor",
    "drift": "podwright.operations.health.drift:Drift",
    "explain": "podwright.check.key_descriptions:Explain",
    "export": "podwright.operations.import_export.export:Export",
    "fetch": "podwright.operations.jobs.fetch:Fetch",
    "import": "podwright.operations.import_export.import_cluster:Import",
    "init": "podwright.operations.settings_file.init:Init",
    "jobs": "podwright.operations.jobs.jobs:Jobs",
    "logs": "podwright.operations.jobs.logs:Logs",
    "move": "podwright.operations.moving.move_command:Move",
    "nodes": "podwright.operations.nodes.nodes:Nodes",
    "outputs": "podwright.operations.deployment.outputs:Outputs",
    "plan": "podwright.planning.plan_document:PlanDocument",
    "policy": "podwright.operations.deployment.policy:Policy",
    "rehearse": "podwright_rehearsal.run.progress:Rehearse",
    "scale": "podwright.operations.nodes.scale:Scaling",
    "setup": "podwright.operations.deployment.setup:Setup",
    "ssh-config": "podwright.operations.access.ssh_config:SshConfig",
    "state": "podwright.operations.deployment.state:StateMoved",
    "status": "podwright.operations.health.status:Status",
    "submit": "podwright.operations.jobs.submit:Submit",
    "teardown": "podwright.operations.deployment.teardown:Teardown",
    "update-software": "podwright.operations.nodes.update_software:UpdateSoftware",
    "validate": "podwright.operations.validation.validate:Validate",
}
EXAMPLES = checkout.ROOT / "examples"
CLUSTER_SCHEMA, RUN_SCHEMA = Path(".podwright/cluster.schema.json"), Path(".podwright/run.schema.json")
_MODELINE = "# yaml-language-server: $schema="  # https://github.com/redhat-developer/yaml-language-server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the document to describe, and the file to write."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=[CLUSTER, *DOCUMENTS],
        default=CLUSTER,
        metavar="WHAT",
        help=f"{CLUSTER}, for editors, or the command whose --json it describes: {', '.join(DOCUMENTS)}. "
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
        text, described = document_text(options.what), f"`podwright {options.what} --json`"
    if options.output:
        write_output(options.output, text)
        print(f"{options.output}: the JSON Schema of {described}")
    else:
        print(text, end="")
    return OK


def document_text(command: str) -> str:
    """Return the JSON Schema of a command's document as text."""
    from podwright.operations.settings_file.document_schema import document_schema

    module, _, name = DOCUMENTS[command].partition(":")
    return json.dumps(document_schema(getattr(import_module(module), name)), indent=1) + "\n"


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
