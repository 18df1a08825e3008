"""Orphans: their ids by ARN, and the cluster as it was created."""

from __future__ import annotations

from pathlib import Path

import pytest

from podwright.cli import main
from podwright.operations.deployment.adopt import _unadopted, as_made
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.orphans import Orphan, import_id

MINIMAL = Path(__file__).parents[2] / "examples" / "minimal" / "cluster.yaml"
EC2 = "arn:aws:ec2:us-west-2:123456789012:"
FSX = "arn:aws:fsx:us-west-2:123456789012:"


@pytest.mark.parametrize(
    ("kind", "arn", "expected"),
    [
        ("aws_vpc", f"{EC2}vpc/vpc-1", "vpc-1"),
        ("aws_s3_bucket", "arn:aws:s3:::sagemaker-x", "sagemaker-x"),
        ("aws_kms_key", "arn:aws:kms:us-west-2:123456789012:key/12-34", "12-34"),
        ("aws_cloudwatch_log_group", "arn:aws:logs:us-west-2:123456789012:log-group:/aws/vpc/x:*", "/aws/vpc/x"),
        ("aws_db_instance", "arn:aws:rds:us-west-2:123456789012:db:slurm-x", "slurm-x"),
        ("aws_fsx_data_repository_association", f"{FSX}association/fs-1/dra-1", "dra-1"),
        ("aws_sns_topic", "arn:aws:sns:us-west-2:123456789012:x", "arn:aws:sns:us-west-2:123456789012:x"),
    ],
)
def test_import_ids(kind: str, arn: str, expected: str) -> None:
    """Terraform imports most types by the name in the ARN, some by the whole ARN."""
    assert import_id(kind, arn) == expected


@pytest.mark.parametrize(
    ("orphan", "is_adoptable", "removal"),
    [
        (Orphan("a", "aws_vpc.v", "vpc-1"), True, "aws ec2 delete-vpc --vpc-id vpc-1"),
        (Orphan("a", "aws_vpc.v", "vpc-1", duplicate_of="vpc-2"), False, "aws ec2 delete-vpc --vpc-id vpc-1"),
        (
            Orphan("a", "aws_nat_gateway.n", "nat-1", "failed"),
            False,
            "aws ec2 delete-nat-gateway --nat-gateway-id nat-1",
        ),
        (Orphan("arn:x", None, "x"), False, "delete arn:x"),
    ],
)
def test_what_is_left(orphan: Orphan, is_adoptable: bool, removal: str) -> None:  # noqa: FBT001
    """An orphan that failed, or without a free address, is left to the user, with the command that deletes it."""
    assert (orphan.is_adoptable, orphan.removal) == (is_adoptable, removal)


def group(name: str, count: int) -> dict[str, object]:
    return {"InstanceGroupName": name, "InstanceCount": count}


def test_a_cluster_is_entered_as_it_was_made() -> None:
    """AWS's order and additions are no difference; a count that was edited since is one."""
    wanted = {
        "ClusterName": "x",
        "InstanceGroups": [group("a", 1), group("b", 2)],
        "Tags": [{"Key": "k", "Value": "v"}],
    }
    made = {
        "ClusterName": "x",
        "ClusterArn": "arn",
        "InstanceGroups": [{**group("b", 2), "CurrentCount": 0}, {**group("a", 1), "CurrentCount": 1}],
        "Tags": [{"Key": "k", "Value": "v"}],
    }
    assert as_made(wanted, made) == wanted
    edited = {**wanted, "InstanceGroups": [group("a", 4), group("b", 2)]}
    assert as_made(edited, made) == wanted


def test_adopt_says_where_to_go(tmp_path, monkeypatch, capsys) -> None:
    """In a folder that nothing was deployed from, the answer is where to run it, and failure."""
    (tmp_path / "cluster.yaml").write_text(MINIMAL.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["adopt"]) == 1
    assert "run `podwright deploy`, or go to the folder that you deployed from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("orphan", "line"),
    [
        (
            Orphan("a", "aws_vpc.v", "vpc-1", duplicate_of="vpc-2"),
            "left aws_vpc.v vpc-1: a duplicate of vpc-2: aws ec2 delete-vpc --vpc-id vpc-1",
        ),
        (
            Orphan("a", "aws_nat_gateway.n", "nat-1", "failed"),
            "left aws_nat_gateway.n nat-1: it is failed: aws ec2 delete-nat-gateway --nat-gateway-id nat-1",
        ),
        (Orphan("arn:x", None, "x"), "left x: the settings no longer describe it: delete arn:x"),
    ],
)
def test_the_line_of_what_is_left_ends_with_its_deletion(orphan: Orphan, line: str) -> None:
    """It says why the state does not take it, and the command for the user to decide."""
    assert _unadopted(orphan).text == line


@pytest.mark.parametrize("command", ["adopt", "align"])
def test_no_state_changes_beside_a_deployment(tmp_path, monkeypatch, capsys, command) -> None:
    """A resource that a deployment is making is in no state yet, and is no orphan."""
    (tmp_path / "cluster.yaml").write_text(MINIMAL.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with Kit(tmp_path / "cluster.yaml", tmp_path).locked("deploy"):
        assert main([command]) == 2
    assert "another podwright command runs in" in capsys.readouterr().err
