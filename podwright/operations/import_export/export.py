"""``podwright export create-cluster.json``: the request of ``aws sagemaker create-cluster`` for a settings file."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from podwright.aws_session import deployer_session
from podwright.check.load import load
from podwright.config_file import add_file
from podwright.errors import OperationError
from podwright.json_document import JsonObject
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.terraform import TerraformError
from podwright.operations.import_export.create_cluster import problems
from podwright.operations.output import print_document
from podwright.operations.target import add_examples
from podwright.output_file import write_output
from podwright.resource_types import CLUSTER
from podwright_common.exit_status import OK

FOUNDATION_FIRST = "deploy what it names first: `podwright deploy --only foundation`"


@dataclass(frozen=True, kw_only=True)
class Export(JsonObject):
    """The document of `podwright export --json`."""

    schema: Literal["podwright.export/1"] = "podwright.export/1"
    output: str
    request: dict[str, Any]
    """Of sagemaker:CreateCluster."""
    not_uploaded: list[str]
    """Terraform's addresses of objects that the bucket lacks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the file to write and the settings file."""
    parser.add_argument(
        "output", type=Path, metavar="OUTPUT.json", help="the file to write, such as create-cluster.json"
    )
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    add_examples(
        parser,
        "podwright export create-cluster.json",
        "aws sagemaker create-cluster --cli-input-json file://create-cluster.json",
    )


def run(options: argparse.Namespace) -> int:
    """Write the request; AWS is not changed.

    Raises:
        PodwrightError: the file is wrong, the foundation is not deployed, or SageMaker would not take the request.
    """
    settings, kit = load(options.file), Kit(options.file, Path.cwd())
    deployer_session(settings).require_answer()
    try:
        with kit.locked("export"):
            kit.synthesize()
            changes = stacks(settings.name, folder=kit.folder)["cluster"].plan()["resource_changes"]
    except TerraformError as error:
        raise OperationError(
            f"Terraform did not plan {settings.name}: {str(error).splitlines()[-1]}", FOUNDATION_FIRST
        ) from error
    (cluster,) = (item["change"]["after"] for item in changes if item["type"] == CLUSTER)
    if "desired_state" not in cluster:
        raise OperationError(f"the request of {settings.name} has values that are not known yet", FOUNDATION_FIRST)
    request = json.loads(cluster["desired_state"])
    if wrong := problems(request):
        raise OperationError("SageMaker would not take the request:\n" + "\n".join(f"  {problem}" for problem in wrong))
    write_output(options.output, json.dumps(request, indent=2) + "\n")
    objects = (item for item in changes if item["type"] == "aws_s3_object")
    missing = [item["address"] for item in objects if "create" in item["change"]["actions"]]
    if options.json:
        print_document(Export(output=str(options.output), request=request, not_uploaded=missing))
        return OK
    print(f"{options.output}: {len(request['InstanceGroups'])} instance groups, valid for sagemaker:CreateCluster")
    if missing:
        print(f"{len(missing)} of its objects are not in the bucket: `podwright deploy --only cluster` uploads them")
    return OK
