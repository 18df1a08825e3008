"""The example of an own stack, deployed, changed and destroyed by each kit's own commands."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podwright.operations.deployment.kit import search_path
from podwright.operations.deployment.terraform import terraform_environment
from podwright_constructs.kit_choice import KITS, VARIABLE
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.run.deployment import SKIP_PROVIDER_LOCK

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_stack"
REGION = "us-west-2"
LIMIT_S = 1500


@dataclass(frozen=True)
class Project:
    """A copy of the example on one kit, which somebody edits and deploys."""

    kit: str
    folder: Path
    environment: Mapping[str, str]

    def edit(self, old: str, new: str) -> None:
        """Change the app as its owner would."""
        text = (self.folder / "main.py").read_text(encoding="utf-8")
        assert text.count(old) == 1
        (self.folder / "main.py").write_text(text.replace(old, new), encoding="utf-8")

    def run(self, verb: str, *arguments: str) -> str:
        """Run one of the kit's commands on the stack and return what it printed."""
        answer = subprocess.run(
            [str(self._program()), verb, "research", *arguments, SKIP_PROVIDER_LOCK],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout + answer.stderr

    def stack(self) -> dict[str, Any]:
        """Return the synthesized stack."""
        file = self.folder / "cdktf.out" / "stacks" / "research" / "cdk.tf.json"
        return dict(json.loads(file.read_text(encoding="utf-8")))

    def _program(self) -> str:
        return str(shutil.which(self.kit, path=self.environment["PATH"]))


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[AwsStandIn]:
    """An account without anything."""
    with AwsStandIn(directory=tmp_path / "aws", region=REGION, transition_s=0.1, instant_deletion=True) as stand_in:
        yield stand_in


@pytest.fixture
def project(request: pytest.FixtureRequest, aws: AwsStandIn, tmp_path: Path) -> Project:
    """The example, copied and importing the kit that is the test's parameter."""
    kit, path = request.param, search_path()
    if shutil.which(kit, path=path) is None:
        pytest.skip(f"{kit} is not installed: {VARIABLE}={kit} make setup installs it")
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder)
    own = {"PATH": path, "CI": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    chosen_by_import = {key: value for key, value in os.environ.items() if key != VARIABLE}
    environment = {**chosen_by_import, **aws.environment(), **terraform_environment(tmp_path / "terraform"), **own}
    copy = Project(kit, folder, environment)
    copy.edit("from cdktf import", f"from {kit} import")
    return copy


@pytest.mark.terraform
@pytest.mark.parametrize("project", list(KITS), indirect=True)
def test_own_stack_is_deployed_changed_and_destroyed(project: Project, aws: AwsStandIn) -> None:
    """Each kit's command creates, changes in place, plans nothing more, and destroys all of it."""
    project.run("deploy", "--auto-approve")
    assert project.stack()["//"]["metadata"]["version"] == importlib.metadata.version(project.kit)
    sagemaker = aws.client("sagemaker")
    cluster = sagemaker.describe_cluster(ClusterName="research")
    (file_system,) = aws.client("fsx").describe_file_systems()["FileSystems"]
    assert {group["InstanceGroupName"]: group["TargetCount"] for group in cluster["InstanceGroups"]} == {
        "controller": 1,
        "workers": 1,
    }
    project.edit('instance_type="ml.g5.12xlarge", count=1', 'instance_type="ml.g5.12xlarge", count=2')
    project.edit("capacity_gib=1200", "capacity_gib=2400")
    changed = project.run("deploy", "--auto-approve")
    assert "0 destroyed" in changed
    after = sagemaker.describe_cluster(ClusterName="research")
    assert after["ClusterArn"] == cluster["ClusterArn"]
    assert {group["InstanceGroupName"]: group["TargetCount"] for group in after["InstanceGroups"]}["workers"] == 2
    (grown,) = aws.client("fsx").describe_file_systems()["FileSystems"]
    assert (grown["FileSystemId"], grown["StorageCapacity"]) == (file_system["FileSystemId"], 2400)
    assert "No changes." in project.run("diff")
    project.run("destroy", "--auto-approve")
    assert aws.inventory() == []
