"""The example of each construct, all in one stack: what it grants and measures, and Terraform's verdict."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Iterator, Mapping
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from cdktf import TerraformElement, TerraformStack
from constructs import Construct, IConstruct

from podwright_testing.pages import blocks

REPOSITORY = Path(__file__).parents[2]
SOURCES = (REPOSITORY / "constructs" / "podwright_constructs").glob("*.py")
MODULES = {f"podwright_constructs.{path.stem}" for path in SOURCES}
EXAMPLES = runpy.run_path(str(REPOSITORY / "examples" / "constructs" / "each_construct.py"))


@pytest.fixture
def everything(synthesize) -> dict[str, Any]:
    """The JSON of a stack with every example, each in a scope of its own."""

    def build(stack: TerraformStack) -> None:
        for name, add in EXAMPLES.items():
            if isfunction(add):
                add(Construct(stack, name))

    return dict(synthesize(build))


def test_what_is_granted_and_measured(everything: dict[str, Any]) -> None:
    """Each grant is a statement about its own resource, and each alarm watches its own metric."""
    statements = [
        (tuple(statement["actions"]), str(statement.get("resources")))
        for document in everything["data"]["aws_iam_policy_document"].values()
        for statement in document["statement"]
    ]
    for action, resource in {
        "aps:RemoteWrite": "aws_prometheus_workspace.",
        "aps:QueryMetrics": "aws_prometheus_workspace.",
        "kms:Encrypt": "aws_kms_key.",
        "s3:ListBucket": "sagemaker-datasets",
        "secretsmanager:GetSecretValue": "aws_db_instance.",
        "sns:Publish": "aws_sns_topic.",
    }.items():
        assert any(action in actions and resource in resources for actions, resources in statements), action
    alarms = everything["resource"]["aws_cloudwatch_metric_alarm"].values()
    watched = {alarm["metric_name"]: str(alarm["dimensions"]) for alarm in alarms}
    assert "aws_fsx_openzfs_file_system." in watched["UsedStorageCapacity"]
    assert "aws_fsx_lustre_file_system." in watched["FreeDataStorageCapacity"]
    assert "research-accounting" in watched["FreeStorageSpace"]
    assert "/aws/vpc/flow-logs/research" in watched["IncomingBytes"]
    assert "research" in watched["RunningJobs"]


def test_the_construct_of_the_page_is_whole() -> None:
    """The snippet "One construct" of docs/own_stack.md makes a stack with a provider and one resource."""
    snippet = [block.text for block in blocks() if block.page == "docs/own_stack.md"][-1]
    from cdktf import Testing

    stack = TerraformStack(Testing.app(), "page")
    exec(snippet, {"self": stack})  # noqa: S102 -- our own page
    written = json.loads(Testing.synth(stack))
    assert set(written["resource"]) == {"aws_fsx_lustre_file_system"}
    assert [provider["region"] for provider in written["provider"]["aws"]] == ["us-west-2"]


@pytest.mark.terraform
def test_terraform_accepts_them(everything: dict[str, Any], terraform: Mapping[str, str], tmp_path: Path) -> None:
    """The real Terraform and AWS provider find nothing wrong with any example."""
    folder = tmp_path / "terraform"
    folder.mkdir()
    (folder / "cdk.tf.json").write_text(json.dumps(everything), encoding="utf-8")
    subprocess.run(["terraform", "init"], cwd=folder, env=terraform, check=True, capture_output=True)
    verdict = subprocess.run(
        ["terraform", "validate", "-json"], cwd=folder, env=terraform, check=False, capture_output=True, text=True
    )
    assert json.loads(verdict.stdout)["diagnostics"] == []


def test_the_resources_of_each_construct_can_be_reached(stack: TerraformStack) -> None:
    """A construct has its resource, or a list of them, as an attribute, for what it offers no argument for."""
    for name, add in EXAMPLES.items():
        if isfunction(add):
            add(Construct(stack, name))
    ours = [item for item in stack.node.find_all() if type(item).__module__ in MODULES]
    assert len({type(item) for item in ours}) > 20
    without = {type(item).__name__ for item in ours if not list(reachable(item))}
    assert without == set()


def reachable(construct: IConstruct) -> Iterator[TerraformElement]:
    """Yield the resources among a construct's public attributes, and in lists there; itself if it is one."""
    if isinstance(construct, TerraformElement):
        yield construct
    for name, value in vars(construct).items():
        if not name.startswith("_"):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, TerraformElement):
                    yield item
