"""From deploy to destroy: one cluster in an account of its own, by the real cdktf, Terraform and AWS provider.

The tests run in order, because a deployment takes a minute.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from podwright import checkout
from podwright.cli import main
from podwright.deploy.terraform import terraform_environment
from podwright.operations.boots import BootLog
from podwright.operations.session import Session
from podwright_rehearsal.aws import AwsStandIn

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(1800)]

MINIMAL = checkout.ROOT / "examples" / "minimal" / "cluster.yaml"
NAME = "minimal"
STEP = {
    "event": "step",
    "host": "ip-10-0-16-5",
    "role": "compute",
    "step": "lustre",
    "outcome": "changed",
    "changes": ["mounted /fsx"],
    "seconds": 3.2,
    "detail": "",
    "hint": "",
}


class Answer(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def podwright(*arguments: str) -> Answer:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments)
    return Answer(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """An account of this module's own."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=0.1, instant_deletion=True) as stand_in:
        yield stand_in


@pytest.fixture(scope="module", autouse=True)
def project(aws: AwsStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a project: cdktf.json and the minimal example, in the account's region."""
    folder = tmp_path_factory.mktemp("project")
    kit = json.loads((checkout.ROOT / "cdktf.json").read_text(encoding="utf-8"))
    kit["app"] = f"{sys.executable} {checkout.ROOT / 'main.py'}"
    (folder / "cdktf.json").write_text(json.dumps(kit), encoding="utf-8")
    settings = MINIMAL.read_text(encoding="utf-8").replace("us-east-2", aws.region).replace("use2-", "usw2-")
    (folder / "cluster.yaml").write_text(settings, encoding="utf-8")
    environment: Mapping[str, str] = {**aws.environment(), **terraform_environment(folder / "terraform")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("PODWRIGHT_CONFIG", raising=False)
        patch.chdir(folder)
        yield folder


def test_a_dry_run_shows_price_and_changes(aws: AwsStandIn) -> None:
    """Before anything is made, the document has every resource of both stacks and the price by the hour."""
    answer = podwright("deploy", "--dry-run", "--json")
    assert (answer.status, answer.json["schema"]) == (0, "podwright.deploy/1")
    changes = {(change["stack"], change["path"]): change["verb"] for change in answer.json["changes"]}
    assert changes["minimal-foundation", "network/vpc"] == changes["minimal-cluster", "cluster/cluster"] == "create"
    assert set(changes.values()) == {"create"}
    assert answer.json["usd_per_hour"] > answer.json["nodes_usd_per_hour"] > 5  # one ml.g5.12xlarge and a controller
    assert aws.inventory() == []


def test_deploy_asks_first(aws: AwsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal and --yes nothing is deployed."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    answer = podwright("deploy", "--only", "foundation")
    assert answer.status == 2
    assert "confirm with --yes" in answer.err
    assert aws.inventory() == []


def test_deploy_follows_every_resource(aws: AwsStandIn) -> None:
    """Each created resource has one line with its construct and id; the last lines are the next commands."""
    answer = podwright("deploy", "--yes")
    assert answer.status == 0, answer.err
    (vpc,) = aws.client("ec2").describe_vpcs(Filters=[{"Name": "tag:podwright:cluster", "Values": [NAME]}])["Vpcs"]
    lines = answer.out.splitlines()
    assert any(line.startswith(f"created   network/vpc {vpc['VpcId']} (") for line in lines)
    assert sum(line.startswith("created ") for line in lines) == sum(line.startswith("  + ") for line in lines)
    assert lines[lines.index("next:") + 1] == "  podwright status"


def test_boot_steps_come_from_the_log_once(aws: AwsStandIn) -> None:
    """A node's steps are read from the cluster's log group, in words and each once; other lines are left out."""
    session = Session(region=aws.region)
    log = BootLog(session, NAME, since_ms=0)
    assert list(log.new_steps()) == []
    arn = aws.client("sagemaker").describe_cluster(ClusterName=NAME)["ClusterArn"]
    group, stream = f"/aws/sagemaker/Clusters/{NAME}/{arn.rpartition('/')[2]}", "LifecycleConfig/workers/i-1"
    logs = aws.client("logs")
    if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName=stream)
    lines = ["lustre mounted", json.dumps(STEP), json.dumps({**STEP, "changes": None})]
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)
    assert [step.line() for step in log.new_steps()] == [
        "ip-10-0-16-5     lustre          changed      3.2 s  mounted /fsx"
    ]
    assert list(log.new_steps()) == []


def test_teardown_lists_what_costs(aws: AwsStandIn) -> None:
    """Nodes, file system, NAT gateway and what was left beside them have an id, a price and a command; CI fails."""
    tags = [{"Key": "podwright:cluster", "Value": NAME}]
    ec2 = aws.client("ec2")
    specification = [{"ResourceType": "volume", "Tags": tags}]
    volume = ec2.create_volume(AvailabilityZone=f"{aws.region}a", Size=730, TagSpecifications=specification)["VolumeId"]
    answer = podwright("teardown", "--check", "--json")
    assert answer.status == 1
    left = {item["kind"]: item for item in answer.json["left"]}
    assert {"nodes", "file system", "NAT gateway", "volume", "bucket", "log group"} <= left.keys()
    assert left["volume"]["delete"] == f"aws ec2 delete-volume --volume-id {volume}"
    assert left["volume"]["usd_per_hour"] == pytest.approx(0.08, rel=0.01)  # 730 GiB, and a month has 730 hours
    assert left["file system"]["usd_per_hour"] > left["NAT gateway"]["usd_per_hour"] > 0
    assert answer.json["usd_per_hour"] == pytest.approx(sum(item["usd_per_hour"] for item in answer.json["left"]), 1e-3)
    ec2.delete_volume(VolumeId=volume)
    assert podwright("teardown").out.splitlines()[-1].startswith(f"{NAME}: ")


def test_scaling_to_nothing_and_back_keeps_the_rest(aws: AwsStandIn, project: Path) -> None:
    """Each plan changes the cluster alone and in place; nodes go and come, the file system and the file stay."""
    before = (project / "cluster.yaml").read_bytes()
    kept = [item for item in aws.inventory() if "FSx" in item]
    for count, nodes in (("0", 1), ("1", 2)):
        scaled = podwright("scale", "workers", count)
        assert scaled.status == 0, scaled.err
        assert "cluster: 1 to update\n  ~ cluster/cluster (aws_cloudcontrolapi_resource): desired_state" in scaled.out
        assert podwright("deploy", "--only", "cluster", "--yes").status == 0
        assert len(aws.client("sagemaker").list_cluster_nodes(ClusterName=NAME)["ClusterNodeSummaries"]) == nodes
    assert [item for item in aws.inventory() if "FSx" in item] == kept != []
    assert (project / "cluster.yaml").read_bytes() == before


def test_destroy_keeps_a_bucket_with_runs(aws: AwsStandIn) -> None:
    """Objects that podwright did not upload stay with their bucket, which is named with its price; all else goes."""
    s3 = aws.client("s3")
    (bucket,) = (item["Name"] for item in s3.list_buckets()["Buckets"])
    s3.put_object(Bucket=bucket, Key=f"{NAME}/runs/tiny/metrics.jsonl", Body=b"{}")
    answer = podwright("destroy", "--yes")
    assert answer.status == 0, answer.err
    assert f"  kept: bucket {bucket}: 1 objects with their versions" in answer.out
    assert [item for item in aws.inventory() if "AWS::S3::" not in item and "Clusters/minimal" not in item] == []
    assert s3.head_object(Bucket=bucket, Key=f"{NAME}/runs/tiny/metrics.jsonl")


def test_what_a_log_group_costs_is_seen_until_it_is_gone(aws: AwsStandIn) -> None:
    """The cluster's log group, which SageMaker makes, is found by its name; with it the bill is zero."""
    left = podwright("teardown", "--json").json["left"]
    assert sorted(item["kind"] for item in left) == ["bucket", "log group"]
    for item in left:
        if item["kind"] == "log group":
            aws.client("logs").delete_log_group(logGroupName=item["id"])
        else:
            versions = aws.client("s3").list_object_versions(Bucket=item["id"])
            for version in [*versions.get("Versions", ()), *versions.get("DeleteMarkers", ())]:
                aws.client("s3").delete_object(Bucket=item["id"], Key=version["Key"], VersionId=version["VersionId"])
            aws.client("s3").delete_bucket(Bucket=item["id"])
    answer = podwright("teardown", "--check")
    assert (answer.status, answer.out.splitlines()[-1]) == (0, f"{NAME}: 0 left, 0 $/h")
