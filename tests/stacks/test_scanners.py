"""Public scanners find nothing in the examples but what is accepted for a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwright.diagram.stack_resources import decoded

REPOSITORY = Path(__file__).parents[2]
SETTINGS = sorted([*REPOSITORY.glob("examples/*/cluster.yaml"), REPOSITORY / "cluster.yaml"])
APPS = sorted(REPOSITORY.glob("examples/library/*.py"))
# One Node for all of them: it is what takes long.
PROGRAM = """
import runpy, sys
from pathlib import Path
from podwright.check.load import load
from podwright_stacks.app import synthesize
for path in sys.argv[1:]:
    runpy.run_path(path) if path.endswith(".py") else synthesize(load(Path(path)), Path("cdktf.out"))
"""
STACKS = {
    *("bring-your-own-cluster", "bring-your-own-foundation", "llm-production-cluster", "llm-production-foundation"),
    *("by-api-cluster", "by-api-foundation"),
    *("minimal-cluster", "minimal-foundation", "podwright-demo-cluster", "podwright-demo-foundation"),
    *("trainium-cluster", "trainium-foundation"),
    *("egress", "everywhere", "permissions", "research", "scratch"),  # of the apps
}
CHECKOV = REPOSITORY / ".cache" / "checkov" / "bin" / "checkov"
ACCEPTED = Path(__file__).parent / "accepted_findings.yaml"
UNIQUE_END = re.compile(r"_[0-9A-F]{8}$")  # cdktf's


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cdktf.out with the stacks of all examples."""
    folder = tmp_path_factory.mktemp("examples")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", PROGRAM, *SETTINGS, *APPS], cwd=folder, env=environment, check=True)
    assert {path.name for path in (folder / "cdktf.out" / "stacks").iterdir()} == STACKS
    return folder / "cdktf.out"


def synthesized(output: Path, stack: str) -> dict[str, Any]:
    """The JSON of a stack."""
    return dict(json.loads((output / "stacks" / stack / "cdk.tf.json").read_text("utf-8")))


@pytest.mark.slow
def test_checkov_finds_only_what_is_accepted(output: Path):
    """Of hundreds of checks on the examples each failed one is accepted at its resource, for a reason."""
    assert CHECKOV.exists(), "tools/setup.sh installs checkov"
    options = ["--framework", "terraform_json", "--skip-download", "--compact", "-o", "json"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answer = subprocess.run(
        [CHECKOV, "-d", output, *options], env=environment, cwd=output, capture_output=True, text=True, check=False
    )
    report = json.loads(answer.stdout)
    assert report["summary"]["passed"] > 400
    assert report["summary"]["parsing_errors"] == 0
    failed = {
        (item["file_path"].split("/")[2], UNIQUE_END.sub("", item["resource"]), item["check_id"])
        for item in report["results"]["failed_checks"]
    }
    accepted = yaml.safe_load(ACCEPTED.read_text(encoding="utf-8"))
    assert all(item["reason"] for item in accepted)
    assert failed == {(*place.split("/"), item["check"]) for item in accepted for place in item["at"]}


@pytest.mark.slow
def test_cfn_lint_accepts_the_clusters(output: Path):
    """Clusters as CloudFormation resources, references as imports, have no error; a misspelt enum has one."""
    states = [
        decoded(resource["desired_state"])
        for stack in sorted(STACKS)
        for resource in synthesized(output, stack).get("resource", {}).get("aws_cloudcontrolapi_resource", {}).values()
    ]
    clusters = [("AWS::SageMaker::Cluster", as_imports(state)) for state in states]
    assert len(clusters) == 9
    assert messages(clusters, "E") == []
    (wrong,) = messages([("AWS::SageMaker::Cluster", {**clusters[0][1], "NodeRecovery": "automatic"})], "E")
    assert "'automatic' is not one of" in wrong


@pytest.mark.slow
def test_cfn_lint_accepts_the_policies(output: Path):
    """Every policy of the examples has a policy's form and actions that exist; a misspelt action is found."""
    found = [policy for stack in sorted(STACKS) for policy in policies(synthesized(output, stack))]
    assert {kind for kind, _ in found} == set(POLICIES.values()) | {"AWS::IAM::Role"}
    assert messages(found, "E35", "W3037") == []
    kind, properties = next(policy for policy in found if policy[0] == "AWS::IAM::ManagedPolicy")
    wrong = json.loads(json.dumps(properties).replace("s3:GetObject", "s3:GetObjekt"))
    assert any("getobjekt" in message for message in messages([(kind, wrong)], "W3037"))


# Terraform's resources with a policy, and CloudFormation's.
POLICIES = {
    "aws_iam_role_policy": "AWS::IAM::ManagedPolicy",
    "aws_kms_key": "AWS::KMS::Key",
    "aws_s3_bucket_policy": "AWS::S3::BucketPolicy",
    "aws_sns_topic_policy": "AWS::SNS::TopicPolicy",
}
NEEDED = {
    "AWS::KMS::Key": "KeyPolicy",
    "AWS::IAM::Role": "AssumeRolePolicyDocument",
}


def policies(stack: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A stack's policies, as resources of CloudFormation: type and properties."""
    documents = stack.get("data", {}).get("aws_iam_policy_document", {})
    used = [
        (kind, block[argument])
        for terraform, argument, kind in (
            *((terraform, "policy", kind) for terraform, kind in POLICIES.items()),
            ("aws_iam_role", "assume_role_policy", "AWS::IAM::Role"),
        )
        for block in stack.get("resource", {}).get(terraform, {}).values()
    ]
    assert {text.split(".")[2] for _, text in used} == set(documents)
    for kind, text in used:
        document = as_policy(documents[text.split(".")[2]])
        yield kind, {NEEDED.get(kind, "PolicyDocument"): document}


def as_policy(block: Mapping[str, Any]) -> dict[str, Any]:
    """A document in IAM's words; references are names of AWS's form."""
    return {"Version": "2012-10-17", "Statement": [as_statement(statement) for statement in block["statement"]]}


def as_statement(block: Mapping[str, Any]) -> dict[str, Any]:
    """A statement in IAM's words."""
    statement: dict[str, Any] = {"Effect": block.get("effect", "Allow"), "Action": block["actions"]}
    if "sid" in block:
        statement["Sid"] = block["sid"]
    if "resources" in block:
        statement["Resource"] = [named(text) for text in block["resources"]]
    for principal in block.get("principals", ()):
        names = [named(text) for text in principal["identifiers"]]
        statement["Principal"] = "*" if names == ["*"] else {**statement.get("Principal", {}), principal["type"]: names}
    for condition in block.get("condition", ()):
        test = statement.setdefault("Condition", {}).setdefault(condition["test"], {})
        test[condition["variable"]] = [named(text) for text in condition["values"]]
    return statement


def named(text: str) -> str:
    """A text with an example for each reference."""
    examples = {"partition": "aws", "account_id": "210987654321", "dns_suffix": "amazonaws.com"}
    arn = "arn:aws:any:us-east-1:210987654321:any"

    def example(match: re.Match[str]) -> str:
        attribute = match[1].rpartition(".")[2]
        return arn if attribute.endswith("arn") else examples.get(attribute, "us-east-1")

    return re.sub(r"\$\{([^}]+)\}", example, text)


def messages(resources: Sequence[tuple[str, dict[str, Any]]], *rules: str) -> list[str]:
    """Return cfn-lint's messages for a template with these resources, of rules whose ids begin so."""
    from cfnlint.api import lint  # takes long, which each test worker would spend while it collects
    from cfnlint.config import ManualArgs

    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Resources": {
            f"Resource{number}": {"Type": kind, "Properties": properties}
            for number, (kind, properties) in enumerate(resources)
        },
    }
    matches = lint(json.dumps(template), config=ManualArgs(regions=["us-east-1"]))
    return [match.message for match in matches if match.rule.id.startswith(rules)]


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
    objects = synthesized(output, "llm-production-cluster")["resource"]["aws_s3_object"].values()
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
    assert "sns" in heads["slurm_sns_arn"]
    accounting = content["podwright"]["accounting"]
    assert accounting["endpoint"] == heads["slurm_database_endpoint"] != ""
    assert accounting["secret_arn"] == heads["slurm_database_secret_arn"] != ""


@pytest.mark.parametrize("stack", sorted(name for name in STACKS if name.endswith("-cluster")))
def test_every_examples_parameters_pass_the_references_validator(output: Path, stack: str):
    """The keys that validate-config.py of AWS's reference requires are there, and worker groups are the cluster's."""
    resources = synthesized(output, stack)["resource"]
    objects = resources["aws_s3_object"].values()
    (content,) = [decoded(item["content"]) for item in objects if item["key"].endswith("_parameters.json")]
    texts = ("version", "workload_manager", "controller_group", "fsx_dns_name", "fsx_mountname")
    assert {key for key in texts if isinstance(content[key], str) and content[key]} == set(texts)
    (cluster,) = resources["aws_cloudcontrolapi_resource"].values()
    groups = {group["InstanceGroupName"] for group in decoded(cluster["desired_state"])["InstanceGroups"]}
    workers = {group["instance_group_name"] for group in content["worker_groups"]}
    assert workers == groups - {content["controller_group"], content.get("login_group")}
