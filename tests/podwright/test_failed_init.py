"""A ``terraform init`` that fails: what to do is said, and the next command begins anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podwright.operations.deployment.deployed_stacks import SYNTHESIZED, DeployedStack
from podwright.operations.deployment.terraform import TerraformError

# A Terraform whose init leaves its folder behind and fails as long as there is a file with an error.
PROGRAM = """\
#!/bin/sh
case $1 in
  version) echo '{{"terraform_version": "1.11.4"}}' ;;
  init)
    echo init >>{folder}/calls
    mkdir -p .terraform
    if [ -f {folder}/error ]; then cat {folder}/error >&2; exit 1; fi ;;
  *) echo done ;;
esac
"""
REGISTRY = """\
Error: Failed to query available provider packages

Could not retrieve the list of available versions for provider hashicorp/aws: could not connect to
registry.terraform.io
"""
BUCKET = """\
Error: Failed to get existing workspaces: S3 bucket "states" does not exist.

The referenced S3 bucket must have been previously created.
"""
DENIED = """\
Error: Failed to get existing workspaces: Unable to list objects in S3 bucket "states": operation error S3:
ListObjectsV2, https response error StatusCode: 403, api error AccessDenied: Access Denied
"""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeployedStack:
    """A synthesized stack, and a Terraform of this test."""
    program = tmp_path / "terraform"
    program.write_text(PROGRAM.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(program))
    folder = tmp_path / "demo-cluster"
    folder.mkdir()
    (folder / SYNTHESIZED).write_text(json.dumps({"terraform": {"backend": {"s3": {"bucket": "states"}}}}))
    return DeployedStack(folder)


@pytest.mark.parametrize(
    ("printed", "hint"),
    [
        (REGISTRY, "let this machine reach registry.terraform.io, or unpack a mirror of hashicorp/aws in ~/.terraform"),
        (BUCKET, "`podwright state` creates the bucket that the settings name"),
        (DENIED, "`podwright policy deployer` prints all that deploying needs"),
        ("Error: something new", ""),
    ],
)
def test_a_failed_init_says_what_to_do(stack: DeployedStack, tmp_path: Path, printed: str, hint: str) -> None:
    """Terraform's own words come first, the status is 1, and the init is repeated until it succeeds, then no more."""
    (tmp_path / "error").write_text(printed)
    for _ in range(2):
        with pytest.raises(TerraformError, match=r"`terraform init` failed in .*: Error: ") as failed:
            stack.terraform("plan")
        assert failed.value.hint.startswith(hint)
        assert bool(failed.value.hint) is bool(hint)
        assert failed.value.exit_status == 1
    (tmp_path / "error").unlink()
    assert [stack.terraform("plan") for _ in range(2)] == ["done\n", "done\n"]
    assert (tmp_path / "calls").read_text().split() == ["init"] * 3
