"""The constructs in somebody else's app: their wheel and its one dependency of ours, and nothing of the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podwright_testing.foreign import environment

REPOSITORY = Path(__file__).parents[2]
PREBUILT = REPOSITORY / ".cache" / "prebuilt"
BESIDE_PREBUILT = """
from cdktf import App, TerraformStack
from cdktf_cdktf_provider_aws.provider import AwsProvider
from cdktf_cdktf_provider_aws.security_group import SecurityGroup
from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import ExistingNetwork

app = App()
stack = TerraformStack(app, "mixed")
AwsProvider(stack, "aws", region="us-west-2")
theirs = SecurityGroup(stack, "theirs", vpc_id="vpc-0a1b2c3d")
network = ExistingNetwork(vpc_id="vpc-0a1b2c3d", subnet_ids=["subnet-0a1b2c3d"], security_group_id=theirs.id)
LustreFileSystem(stack, "ours", LustreArguments(capacity_gib=2400), network=network)
app.synth()
"""
APPS = sorted((REPOSITORY / "examples" / "library").glob("*.py"))


@pytest.fixture(scope="session")
def foreign_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment: of ours the constructs' wheel and the node's alone, and what they declare."""
    return environment(tmp_path_factory.mktemp("foreign"), "common", "constructs", "lifecycle_scripts")


@pytest.fixture(scope="session")
def stacks(foreign_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The folder of each app's stack, synthesized in one project."""
    project = tmp_path_factory.mktemp("project")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for app in APPS:
        command = [foreign_python, "-c", f"import runpy; runpy.run_path({str(app)!r})"]
        subprocess.run(command, cwd=project, env=environment, check=True)
    return {folder.name: folder for folder in sorted((project / "cdktf.out" / "stacks").iterdir())}


def synthesized(folder: Path) -> dict[str, Any]:
    """A stack's JSON."""
    return dict(json.loads((folder / "cdk.tf.json").read_text(encoding="utf-8")))


def test_only_the_wheels_are_there(foreign_python: Path, tmp_path: Path):
    """In the foreign environment our constructs come from the wheel, and our application is not there."""
    code = "import podwright_constructs as it, importlib.util as u; print(it.__file__, u.find_spec('podwright'))"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answer = subprocess.run(
        [foreign_python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    module, application = answer.stdout.split()
    assert Path(module).is_relative_to(foreign_python.parents[1])
    assert application == "None"


@pytest.mark.terraform
@pytest.mark.parametrize("name", ["egress", "everywhere", "permissions", "research", "scratch"])
def test_apps_are_valid_terraform(stacks: Mapping[str, Path], terraform: Mapping[str, str], name: str):
    """The real Terraform and AWS provider accept what each app of the examples gives."""
    subprocess.run(["terraform", "init"], cwd=stacks[name], env=terraform, check=True, capture_output=True)
    verdict = subprocess.run(
        ["terraform", "validate", "-json"], cwd=stacks[name], env=terraform, check=False, capture_output=True, text=True
    )
    assert json.loads(verdict.stdout)["diagnostics"] == []


@pytest.mark.slow
def test_one_construct_is_one_resource(stacks: Mapping[str, Path]):
    """A construct alone brings nothing but what it is; a cluster on what exists is one resource, too."""
    assert set(synthesized(stacks["scratch"])["resource"]) == {"aws_fsx_lustre_file_system"}
    assert set(synthesized(stacks["research"])["resource"]) == {"aws_cloudcontrolapi_resource", "terraform_data"}


@pytest.mark.slow
def test_what_is_granted_is_in_the_role(stacks: Mapping[str, Path]):
    """A grant and a statement join the role's policy, and a metric's alarm watches the file system by its id."""
    stack = synthesized(stacks["permissions"])
    statements = [
        statement
        for document in stack["data"]["aws_iam_policy_document"].values()
        for statement in document["statement"]
    ]
    assert any("sagemaker-datasets/papers/*" in str(item.get("resources")) for item in statements)
    assert any(item["actions"] == ["ecr:GetAuthorizationToken"] for item in statements)
    (alarm,) = stack["resource"]["aws_cloudwatch_metric_alarm"].values()
    assert alarm["dimensions"]["FileSystemId"].startswith("${aws_fsx_lustre_file_system.files_file_system_")


def test_each_region_has_its_provider(stacks: Mapping[str, Path]):
    """With two providers in a stack, everything of the west is the west's and everything else the default's."""
    stack = synthesized(stacks["everywhere"])
    assert [item.get("alias") for item in stack["provider"]["aws"]] == [None, "west"]
    of_aws = [
        by_name for kind in ("resource", "data") for type_, by_name in stack[kind].items() if type_ != "terraform_data"
    ]
    blocks = [item for by_name in of_aws for item in by_name.items()]
    assert len(blocks) > 50
    for name, block in blocks:
        assert block.get("provider") == ("aws.west" if name.startswith("site_west") else None)


@pytest.mark.slow  # jsii loads all of AWS: a minute of CPU time
@pytest.mark.skipif(not PREBUILT.exists(), reason="bench/synth.py installs the prebuilt bindings, some 250 MB")
def test_constructs_go_beside_prebuilt_bindings(foreign_python: Path, tmp_path: Path):
    """In a stack of the prebuilt bindings our file system takes the id of their security group."""
    (prebuilt,) = PREBUILT.glob("lib/python*/site-packages")
    code = f"import site; site.addsitedir({str(prebuilt)!r}){BESIDE_PREBUILT}"
    subprocess.run([foreign_python, "-I", "-c", code], cwd=tmp_path, check=True)
    (file_system,) = synthesized(tmp_path / "cdktf.out" / "stacks" / "mixed")["resource"][
        "aws_fsx_lustre_file_system"
    ].values()
    assert file_system["security_group_ids"] == ["${aws_security_group.theirs.id}"]


@pytest.mark.slow
def test_apps_are_typed(foreign_python: Path):
    """A consumer's mypy --strict reads our types from the wheel and finds nothing in the apps, but finds a mistake."""
    wrong = 'from podwright_constructs.network import ExistingNetwork\nExistingNetwork(vpc_id=1, subnet_ids=["x"])\n'
    options = ["--strict", "--config-file=", f"--cache-dir={REPOSITORY / '.mypy_cache' / 'consumer'}"]
    command = [sys.executable, "-m", "mypy", *options, f"--python-executable={foreign_python}", *map(str, APPS)]
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "MYPYPATH"}}
    project = foreign_python.parents[2]
    (project / "wrong.py").write_text(wrong, encoding="utf-8")
    answer = subprocess.run(
        [*command, "wrong.py"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    *errors, summary = answer.stdout.splitlines()
    assert summary.startswith("Found 2 errors in 1 file"), answer.stdout
    assert 'Missing named argument "security_group_id"' in errors[0]
    assert 'Argument "vpc_id"' in errors[1]


def test_docs_are_current():
    """docs/constructs.md is what tools/document_constructs.py writes."""
    command = [sys.executable, str(REPOSITORY / "tools" / "document_constructs.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
