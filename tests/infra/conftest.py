"""Synthesized stacks as plain dictionaries, and the real Terraform to judge them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

# Before cdktf is imported: its Node process reads them once.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

import cdktf  # noqa: E402
from cdktf import App, TerraformStack  # noqa: E402

from podwright.rehearsal.terraform import terraform_environment  # noqa: E402
from podwright_constructs.aws.provider import AwsProvider  # noqa: E402

REGION = "us-west-2"
Synthesize = Callable[[Callable[[TerraformStack], object]], dict[str, Any]]
Evaluate = Callable[[str], Any]


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment in which Terraform finds the AWS provider, if this machine has it, without the network."""
    return {**os.environ, **terraform_environment(tmp_path_factory.mktemp("terraform"))}


@pytest.fixture
def stack(tmp_path: Path) -> TerraformStack:
    """An empty stack with a provider."""
    empty = TerraformStack(App(outdir=str(tmp_path / "cdktf.out")), "test")
    AwsProvider(empty, "aws", region=REGION)
    return empty


@pytest.fixture
def synthesize(stack: TerraformStack) -> Synthesize:
    """Add what the test builds to the stack; its JSON as Terraform reads it."""

    def run(build: Callable[[TerraformStack], object]) -> dict[str, Any]:
        build(stack)
        return dict(json.loads(cdktf.Testing.synth(stack, True)))

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
