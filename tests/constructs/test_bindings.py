"""The generated Terraform bindings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cdktf import TerraformStack

from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocument
from podwright_constructs.aws.vpc import Vpc

REPOSITORY = Path(__file__).parents[2]
GENERATOR = REPOSITORY / "tools" / "generate_bindings.py"


@pytest.mark.terraform
def test_committed_modules_are_what_the_providers_schema_says(terraform: Mapping[str, str]) -> None:
    """Regenerating the bindings from the real provider changes nothing."""
    answer = subprocess.run(
        [sys.executable, str(GENERATOR), "--check"], env=terraform, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "modules are as generated" in answer.stdout


def test_both_majors_of_the_provider_are_allowed(synthesize) -> None:
    """Terraform may install any version from the oldest supported one to the last of the next major."""
    stack = synthesize(lambda stack: Vpc(stack, "vpc", cidr_block="10.0.0.0/16"))
    assert stack["terraform"]["required_providers"]["aws"] == {"source": "hashicorp/aws", "version": ">= 5.100, < 7"}


def test_arguments_that_are_not_given_are_not_written(synthesize) -> None:
    """An argument left out stays out, at every depth; one that is false is written."""

    def build(stack: TerraformStack) -> None:
        Vpc(stack, "vpc", cidr_block="10.0.0.0/16", enable_dns_support=False)
        DataIamPolicyDocument(stack, "document", statement=[{"actions": ["s3:GetObject"], "sid": None}])

    stack = synthesize(build)
    (vpc,) = stack["resource"]["aws_vpc"].values()
    (document,) = stack["data"]["aws_iam_policy_document"].values()
    assert {key: value for key, value in vpc.items() if key != "//"} == {
        "cidr_block": "10.0.0.0/16",
        "enable_dns_support": False,
    }
    assert document["statement"] == [{"actions": ["s3:GetObject"]}]
