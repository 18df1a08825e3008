"""Public scanners find nothing in the production example but what is accepted for a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cfnlint.api import lint
from cfnlint.config import ManualArgs

from podwright.diagram.resources import decoded

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "production" / "cluster.yaml"
CHECKOV = REPOSITORY / ".cache" / "checkov" / "bin" / "checkov"
ACCEPTED = Path(__file__).parent / "accepted_findings.yaml"
UNIQUE_END = re.compile(r"_[0-9A-F]{8}$")  # cdktf's


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cdktf.out of the production example."""
    folder = tmp_path_factory.mktemp("production")
    environment = {**os.environ, "PODWRIGHT_CONFIG": str(EXAMPLE)}
    subprocess.run([sys.executable, REPOSITORY / "main.py"], cwd=folder, env=environment, check=True)
    return folder / "cdktf.out"


def cluster_stack(output: Path) -> dict[str, Any]:
    """The JSON of the cluster's stack."""
    return dict(json.loads((output / "stacks" / "llm-production-cluster" / "cdk.tf.json").read_text("utf-8")))


def test_checkov_finds_only_what_is_accepted(output: Path):
    """Of more than a hundred checks on both stacks each failed one is accepted at its resource, for a reason."""
    assert CHECKOV.exists(), "tools/setup.sh installs checkov"
    options = ["--framework", "terraform_json", "--skip-download", "--compact", "-o", "json"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answer = subprocess.run(
        [CHECKOV, "-d", output, *options], env=environment, cwd=output, capture_output=True, text=True, check=False
    )
    report = json.loads(answer.stdout)
    assert report["summary"]["passed"] > 100
    assert report["summary"]["parsing_errors"] == 0
    assert {check["file_path"].split("/")[2] for check in report["results"]["passed_checks"]} == {
        "llm-production-cluster",
        "llm-production-foundation",
    }
    failed = {(item["check_id"], UNIQUE_END.sub("", item["resource"])) for item in report["results"]["failed_checks"]}
    accepted = yaml.safe_load(ACCEPTED.read_text(encoding="utf-8"))
    assert all(item["reason"] for item in accepted)
    assert failed == {(item["check"], item["resource"]) for item in accepted}


def test_cfn_lint_accepts_the_cluster(output: Path):
    """The cluster as a CloudFormation resource, references as imports, has no error; a misspelt enum has one."""
    (resource,) = cluster_stack(output)["resource"]["aws_cloudcontrolapi_resource"].values()
    state = decoded(resource["desired_state"])
    assert [group["InstanceCount"] for group in state["InstanceGroups"]]
    assert errors_of(state) == []
    (wrong,) = errors_of({**state, "NodeRecovery": "automatic"})
    assert "'automatic' is not one of" in wrong


def errors_of(state: dict[str, Any]) -> list[str]:
    """cfn-lint's errors for a template with this cluster; what it only warns of is left out."""
    resource = {"Type": "AWS::SageMaker::Cluster", "Properties": as_imports(state)}
    template = json.dumps({"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Cluster": resource}})
    matches = lint(template, config=ManualArgs(regions=["us-east-1"]))
    return [match.message for match in matches if match.rule.id.startswith("E")]


def as_imports(value: Any) -> Any:
    """References in CloudFormation's words."""
    if isinstance(value, dict):
        return {key: as_imports(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_imports(item) for item in value]
    if isinstance(value, str) and value.startswith(("data.", "aws_")):
        return {"Fn::ImportValue": value.rpartition(".")[2]}
    if isinstance(value, str) and "${" in value:
        start, _, end = value.partition("${")
        name, _, end = end.partition("}")
        return {"Fn::Sub": [f"{start}${{There}}{end}", {"There": {"Fn::ImportValue": name.rpartition(".")[2]}}]}
    return value


def test_provisioning_parameters_have_the_references_shape(output: Path):
    """AWS's agent finds the keys it knows, of the types it knows, and no login group among the workers."""
    objects = cluster_stack(output)["resource"]["aws_s3_object"].values()
    (content,) = [decoded(item["content"]) for item in objects if item["key"].endswith("/provisioning_parameters.json")]
    assert (content["version"], content["workload_manager"]) == ("1.0.0", "slurm")
    assert (content["controller_group"], content["login_group"]) == ("controller", "login")
    assert content["worker_groups"] == [
        {"instance_group_name": "cpu", "partition_name": "data"},
        {"instance_group_name": "h100", "partition_name": "train"},
    ]
    for key in ("fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name"):
        assert isinstance(content[key], str)
    heads = content["slurm_configurations"]  # there are two controllers
    assert heads["slurm_shared_directory"] == "/fsx"
    accounting = content["podwright"]["accounting"]
    assert accounting["endpoint"] == heads["slurm_database_endpoint"] != ""
    assert accounting["secret_arn"] == heads["slurm_database_secret_arn"] != ""
