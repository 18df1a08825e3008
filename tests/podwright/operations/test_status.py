"""``podwright status``: what it reads, what it prints, and the causes it names."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from rich.console import Console

from podwright.cli import main
from podwright.operations.failures import KNOWN, UNKNOWN, causes
from podwright.operations.overview import overview
from podwright.operations.session import Session
from podwright.operations.status import render

pytestmark = pytest.mark.usefixtures("folder")  # the environment that leads to the stand-in


@pytest.fixture(scope="module")
def name(aws, maker):
    """Return the name of a continuous cluster in API mode that mounts a Lustre file system, a third full."""
    fsx, cloudwatch = aws.client("fsx"), aws.client("cloudwatch")
    made = fsx.create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[maker.subnet_id],
        SecurityGroupIds=[maker.security_group_id],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    )["FileSystem"]
    dimensions = [{"Name": "FileSystemId", "Value": made["FileSystemId"]}]
    metric = {"MetricName": "FreeDataStorageCapacity", "Value": 800 * 2**30, "Dimensions": dimensions}
    earlier = datetime.now(timezone.utc) - timedelta(minutes=3)
    cloudwatch.put_metric_data(Namespace="AWS/FSx", MetricData=[{**metric, "Timestamp": earlier, "Unit": "Bytes"}])
    mount = {"DnsName": made["DNSName"], "MountName": made["LustreConfiguration"]["MountName"]}
    maker.make(
        "status",
        api_mode=True,
        storage=[{"FsxLustreConfig": mount}],
        NodeProvisioningMode="Continuous",
        Orchestrator={"Slurm": {}},
    )
    return "status"


@pytest.fixture
def found(name):
    return overview(Session(), name)


def screen(found, width: int) -> str:
    """Return what a terminal of this width shows, without colours."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(render(found, width=width))
    return file.getvalue()


def test_json_has_state_nodes_fill_and_price(name, capsys):
    """One document has the cluster, each node's zone, the file system's fill and the hourly price."""
    assert main(["status", "--cluster", name, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["status"], answer["healthy"]) == ("podwright.status/1", "InService", True)
    assert set(answer) == {
        *("schema", "cluster", "arn", "region", "status", "healthy", "failure_message", "created_at"),
        *("usd_per_hour", "unpriced", "groups", "nodes", "file_systems", "events", "jobs", "causes", "missing"),
    }
    assert [node["zone"] for node in answer["nodes"]] == ["us-west-2a"] * 3
    (file_system,) = answer["file_systems"]
    assert file_system["used_percent"] == pytest.approx(100 / 3)
    groups = {group["name"]: group for group in answer["groups"]}
    assert groups["workers"]["node_statuses"] == {"Running": 2}
    priced = [*answer["groups"], file_system]
    assert answer["usd_per_hour"] == pytest.approx(sum(item["usd_per_hour"] for item in priced), abs=1e-3)
    assert groups["workers"]["usd_per_hour"] > 2 * groups["controller"]["usd_per_hour"] > 0
    assert answer["events"]
    assert answer["missing"] == []


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_fits_the_terminal(found, width):
    """No line is longer than the terminal; a narrow one shows fewer columns."""
    text = screen(found, width)
    assert max(map(len, text.splitlines())) <= width
    assert "status  InService  us-west-2" in text
    assert "workers" in text
    assert ("us-west-2a" in text) == (width >= 80)
    assert "33 %" in text


def test_a_pipe_gets_plain_whole_lines(name, capsys):
    """Without a terminal nothing is coloured, cut or padded."""
    assert main(["status", "--cluster", name]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "us-west-2a" in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_a_failure_names_its_cause_and_the_evidence(found):
    """A failed node and a failed cluster each show AWS's message, the likely cause and a command."""
    node = replace(found.nodes[-1], status="Failure", message="Lifecycle scripts did not run successfully.")
    cluster = replace(found.cluster, status="Failed", failure_message="EFA health checks did not run successfully")
    messages = [cluster.failure_message, node.message]
    failed = replace(found, cluster=cluster, nodes=(*found.nodes[:-1], node), causes=tuple(causes(cluster, messages)))
    assert not failed.is_healthy
    text = screen(failed, 200)
    assert "likely: the security group must let all traffic pass to and from itself" in text
    assert "look:   podwright logs --lifecycle --cluster status --region us-west-2" in text
    assert "Failure" in text


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Lifecycle scripts did not run successfully. Ensure the scripts exist in provided S3 path",
            "lifecycle script",
        ),
        ("Insufficient capacity for ml.p5.48xlarge in use1-az6", "the zone has no such instances"),
        ("EFA health checks did not run successfully", "the security group"),
        ("ResourceLimitExceeded: The account-level service limit is 0 Instances", "quota"),
        ("Configuration drift detected.", "partitions were edited"),
        ("You cannot include both a SLURM Orchestrator Config and a provisioning_parameters.json", "both set Slurm up"),
        ("Could not assume role arn:aws:iam::1:role/nodes", "the nodes' role"),
        ("Not enough free addresses: no free IP address in subnet-1", "too few free addresses"),
        ("Hardware fault: NVLink error", "a hardware fault"),
        ("Something new", UNKNOWN),
    ],
)
def test_known_failures_have_causes(found, message, expected):
    """Each known message leads to its own cause; another one to the logs."""
    (cause,) = causes(found.cluster, [message, message, ""])
    assert expected in cause.cause
    assert "{" not in cause.command


def test_every_command_of_the_table_can_be_written(found):
    """All placeholders of all rows are values of the cluster."""
    values = {"name": "", "region": "", "security_groups": "", "scripts": ""}
    assert [row.command for row in KNOWN if "{" in row.command.format(**values)] == []
    assert found.causes == ()


def test_a_missing_permission_leaves_out_one_part(aws, name, capsys):
    """Without the right to see file systems the rest is shown, and the permission is named."""
    aws.refuse("fsx DescribeFileSystems", code="AccessDeniedException", message="no")
    assert main(["status", "--cluster", name]) == 0
    out = capsys.readouterr().out
    assert "not shown: file systems: AWS denied fsx:DescribeFileSystems" in out
    assert "workers" in out


def test_jobs_that_cannot_be_read_are_left_out(name, capsys, monkeypatch, folder):
    """Without AWS's plugin the rest is shown, and the missing program is named."""
    monkeypatch.setenv("PATH", str(folder))
    assert main(["status", "--cluster", name, "--jobs"]) == 0
    out = capsys.readouterr().out
    assert "not shown: jobs: session-manager-plugin is not on PATH" in out
    assert "workers" in out


def test_wait_ends_when_all_nodes_run(maker, capsys, monkeypatch):
    """``--wait`` returns a settled cluster, and shows changes on stderr."""
    monkeypatch.setattr("podwright.operations.status.WATCH_S", 0.1)
    maker.make("waiting", workers=1)
    session = Session()
    session.call("sagemaker", "update_cluster_software", ClusterName="waiting")
    assert main(["status", "--cluster", "waiting", "--wait", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert {node["status"] for node in answer["nodes"]} == {"Running"}
    assert "waiting is InService: controller 1/1, workers 1/1" in err


def test_watch_needs_a_terminal(name, capsys):
    """In a pipe, --watch is a usage error that names the way."""
    assert main(["status", "--cluster", name, "--watch", "5"]) == 2
    assert "podwright status --json" in capsys.readouterr().err
