"""For all tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from podwright.deploy.terraform import find_mirror, terraform_environment

if TYPE_CHECKING:
    from cdktf import TerraformStack

# Before cdktf is imported: its Node process reads them once.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

# How fast a machine is, is no property of the code.
settings.register_profile("podwright", deadline=None)
settings.load_profile("podwright")

# Terraform's cache of providers, used where there is no mirror, is not for several at once.
worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker and not find_mirror():
    cache = Path(__file__).parents[1] / ".cache" / "terraform-plugins" / worker
    os.environ.setdefault("TF_PLUGIN_CACHE_DIR", str(cache))


class ClustersInTurn(LoadFileScheduling):  # type: ignore[misc]
    """Of ``pytest -n``: a file's tests share a worker, and Slurm's clusters come one after another: it has timeouts."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "clusters" if "/rehearsal/" in file and "/test_aws_" not in file else file


@pytest.hookimpl(optionalhook=True)  # there is none under `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ClustersInTurn:
    """Who shares a worker."""
    return ClustersInTurn(config, log)


# ---- synthesized stacks, and the real Terraform to judge them -----------------------------------

REGION = "us-west-2"
Synthesize = Callable[[Callable[["TerraformStack"], object]], dict[str, Any]]
Evaluate = Callable[[str], Any]


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment in which Terraform finds the AWS provider, if this machine has it, without the network."""
    return {**os.environ, **terraform_environment(tmp_path_factory.mktemp("terraform"))}


@pytest.fixture
def stack(tmp_path: Path) -> TerraformStack:
    """An empty stack with a provider."""
    from cdktf import App, TerraformStack  # starts Node

    from podwright_constructs.aws.provider import AwsProvider

    empty = TerraformStack(App(outdir=str(tmp_path / "cdktf.out")), "test")
    AwsProvider(empty, "aws", region=REGION)
    return empty


@pytest.fixture
def synthesize(stack: TerraformStack) -> Synthesize:
    """Add what the test builds to the stack; its JSON as Terraform reads it."""

    def run(build: Callable[[TerraformStack], object]) -> dict[str, Any]:
        from cdktf import Testing

        build(stack)
        return dict(json.loads(Testing.synth(stack, True)))

    return run


@pytest.fixture
def evaluate(tmp_path: Path, terraform: Mapping[str, str]) -> Evaluate:
    """What Terraform makes of a ``${jsonencode(…)}`` argument whose only references are the region's."""

    def run(argument: str) -> Any:
        expression = re.sub(r"\$\{(.*)\}", r"\1", argument, flags=re.DOTALL)
        expression = re.sub(r"data\.aws_region\.\w+\.id", json.dumps(REGION), expression)
        answer = subprocess.run(
            ["terraform", "console"],
            input=expression,
            env=terraform,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(json.loads(answer.stdout))

    return run
