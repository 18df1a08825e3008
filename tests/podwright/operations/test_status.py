"""``podwright status``: what it reads, what it prints, and the causes it names."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.console import Console

from podwright.aws_session import Session
from podwright.checkout import ROOT
from podwright.cli import main
from podwright.operations.account import hyperpod
from podwright.operations.account.failures import KNOWN, UNKNOWN, causes
from podwright.operations.deployment.deploy import missing_nodes
from podwright.operations.health.overview import overview
from podwright.operations.health.status import _screen, document, render
from podwright.settings.names import CLUSTER_TAG
from podwright_testing.terminal import Terminal

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
    gateway_tags = {"ResourceType": "natgateway", "Tags": [{"Key": CLUSTER_TAG, "Value": "status"}]}
    ec2 = aws.client("ec2")
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    ec2.create_nat_gateway(SubnetId=maker.subnet_id, AllocationId=address, TagSpecifications=[gateway_tags])
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
    """One document has the cluster, each node's zone, the file system's fill and the hourly price of everything."""
    assert main(["status", "--cluster", name, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["status"], answer["healthy"]) == ("podwright.status/1", "InService", True)
    assert set(answer) == {
        *("schema", "cluster", "arn", "region", "status", "healthy", "failure_message", "created_at"),
        *(
            "usd_per_hour",
            "unpriced",
            "groups",
            "nodes",
            "file_systems",
            "others",
            "events",
            "jobs",
            "job_nodes",
            "topology",
            "drift",
            "causes",
            "missing",
        ),
    }
    assert [node["zone"] for node in answer["nodes"]] == ["us-west-2a"] * 3
    (file_system,) = answer["file_systems"]
    assert file_system["used_percent"] == pytest.approx(100 / 3)
    groups = {group["name"]: group for group in answer["groups"]}
    assert groups["workers"]["node_statuses"] == {"Running": 2}
    (gateway,) = answer["others"]
    assert (gateway["kind"], gateway["usd_per_hour"]) == ("NAT gateway", pytest.approx(0.05))
    priced = [*answer["groups"], file_system, gateway]
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
    assert "NAT gateway" in text
    assert ("us-west-2a" in text) == (width >= 80)
    assert "33 %" in text


@pytest.mark.parametrize("width", [60, 80])
def test_long_names_fit_too(found, width):
    """The longest instance type, which has no price in many regions, fits as well."""
    long = {"instance_type": "ml.p6-b200.48xlarge", "name": "workers-of-the-night"}
    groups = [replace(group, **long) for group in found.cluster.groups]
    longer = [replace(item, group=group, usd_per_hour=None) for item, group in zip(found.groups, groups, strict=True)]
    text = screen(replace(found, cluster=replace(found.cluster, groups=tuple(groups)), groups=tuple(longer)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "without ml.p6-b200.48xlarge" in " ".join(text.split())


def test_a_broken_file_is_named(name, capsys):
    """A file with errors stops a command that it must name the cluster for; else it is only not compared."""
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^name: .*$", f"name: {name}", text, flags=re.MULTILINE)
    Path("cluster.yaml").write_text(f"{text}\nlustr: 5\n", encoding="utf-8")
    assert main(["status"]) == 0
    assert "not shown: differences from the settings: cluster.yaml has 1 error, which `podwright check` shows" in (
        capsys.readouterr().out
    )
    for broken in (f"{text}\n  : [", text.replace("region:", "regoin:")):
        Path("cluster.yaml").write_text(broken, encoding="utf-8")
        assert main(["check"]) == 1
        findings = capsys.readouterr().out.rpartition("\n\n")[0]
        for command in (["status"], ["scale", "workers", "1"]):
            assert main(command) == 1
            assert capsys.readouterr().err.rstrip() == findings.rstrip()


def test_what_the_file_says_otherwise_is_one_line(name, capsys):
    """Another count is named, with the command that shows all differences; the same counts are no drift."""
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^name: .*$", f"name: {name}", text, flags=re.MULTILINE).replace("count: 2\n", "count: 4\n")
    Path("cluster.yaml").write_text(text, encoding="utf-8")
    assert main(["status"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("drift: ")]
    assert "workers: AWS has 2 nodes, cluster.yaml says 4 nodes" in line
    assert line.endswith("`podwright drift` shows all")
    Path("cluster.yaml").write_text(text.replace("count: 4\n", "count: 2\n"), encoding="utf-8")
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drift"] == []


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


@pytest.mark.parametrize(
    ("status", "message", "likely"),
    [
        ("Failed", "Lifecycle scripts did not run successfully. Ensure the scripts exist", "lifecycle script failed"),
        ("Failed", "Insufficient capacity for ml.g5.12xlarge in usw2-az1", "the zone has no such instances"),
        ("RollingBack", "MinInstanceCount of workers was not met", "fewer nodes than min_count"),
    ],
)
def test_a_cluster_that_failed_in_aws_shows_why(aws, name, capsys, status, message, likely):
    """AWS's state and message, the likely cause and the command are shown, and the status is 1."""
    aws.fail(name, status=status, message=message)
    try:
        assert main(["status", "--cluster", name]) == 1
    finally:
        aws.fail(name, status="")
    out = capsys.readouterr().out
    assert f"status  {status}" in out
    assert f"failed: {message}\nlikely: " in out
    assert likely in out
    assert "\nlook:   " in out


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [("ShuttingDown", "", 0), ("DeepHealthCheckInProgress", "", 0), ("Failure", "Hardware fault: NVLink error", 1)],
)
def test_a_node_in_another_state_is_counted(aws, name, found, capsys, status, message, code):
    """A faulty node is named with its cause and is status 1; one that goes or is tested is no failure."""
    node = found.nodes[-1].instance_id
    aws.fail(name, node=node, status=status, message=message)
    try:
        assert main(["status", "--cluster", name, "--json"]) == code
    finally:
        aws.fail(name, node=node, status="")
    answer = json.loads(capsys.readouterr().out)
    workers = next(group for group in answer["groups"] if group["name"] == "workers")
    assert workers["node_statuses"] == {"Running": 1, status: 1}
    assert [cause["message"] for cause in answer["causes"]] == ([message] if code else [])


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
    monkeypatch.setattr("podwright.operations.health.status.WATCH_S", 0.1)
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


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("\x03", 130)], ids=["q", "Ctrl-C"])
def test_watch_draws_until_a_key(name, key, status):
    """It draws again and again on the alternate screen; q or Ctrl-C brings the terminal back as it was."""
    words = [sys.executable, "-m", "podwright", "status", "--cluster", name, "--watch", "0.2"]
    with Terminal(words, columns=80, rows=24) as terminal:
        terminal.wait_for("every 0.2 s; q ends.", times=3)
        terminal.type(f"x{key}")
        assert terminal.wait() == status
        assert terminal.settings_are_restored
        assert terminal.output.count("\x1b[?1049h") == terminal.output.count("\x1b[?1049l") == 1
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {}], ids=["NO_COLOR", "colours"])
def test_colours_are_for_terminals_that_want_them(name, variables):
    """A terminal gets colours, but none with NO_COLOR."""
    given = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | variables
    words = [sys.executable, "-m", "podwright", "status", "--cluster", name]
    with Terminal(words, columns=80, environment=given) as terminal:
        assert terminal.wait() == 0
        assert ("\x1b[32m" in terminal.output) == (not variables)
        assert max(map(len, terminal.text.splitlines())) <= 80


def test_watch_shows_causes_first(found):
    """On a terminal of 24 lines the cause of a failure is seen above a hundred nodes."""
    failed = [replace(found.nodes[-1], status="Failure", message="EFA health checks did not run successfully")] * 100
    broken = replace(found, nodes=tuple(failed), causes=tuple(causes(found.cluster, [failed[0].message])))
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system=None).print(_screen(broken, "12:00", width=80))
    first = file.getvalue().splitlines()[:18]
    assert any("likely: the security group" in line for line in first)
    assert any("workers" in line for line in first)


@pytest.mark.parametrize("columns", [60, 80])
def test_it_fits_with_the_longest_type(name, found, columns):
    """A long instance type, and a price that other regions give, make no line wider than the terminal."""
    long_type = "ml.p6-b200.48xlarge"
    groups = tuple(
        replace(item, group=replace(item.group, instance_type=long_type), usd_per_hour=None) for item in found.groups
    )
    cluster = replace(found.cluster, groups=tuple(item.group for item in groups))
    lines = screen(replace(found, cluster=cluster, groups=groups), columns).splitlines()
    assert any(long_type in line for line in lines)
    assert [line for line in lines if len(line.rstrip()) > columns] == []
    with Terminal([sys.executable, "-m", "podwright", "status", "--cluster", name], columns=columns) as terminal:
        assert terminal.wait() == 0
    wide = [line for line in terminal.text.splitlines() if len(line) > columns and len(line.split()) > 1]
    assert wide == []


def test_an_event_has_the_reason_of_its_failure(aws, name):
    """Lists of events have no reason: it is read from each warning and error; without the right, a line says so."""
    node = next(node.instance_id for node in hyperpod.nodes(Session(), hyperpod.find(Session(), name)))
    unhealthy = {"Component": "Slurmdbd", "Status": "Unhealthy", "Reason": "DbUnreachable"}
    aws.add_event(name, "failed", node=node, metadata={"Instance": {"FailureMessage": "no EFA\n device"}})
    aws.add_event(name, "unhealthy", level="Warn", metadata={"SlurmHealth": unhealthy})
    aws.add_event(name, "no reason", metadata={"Cluster": {}})
    aws.add_event(name, "no problem", level="Info", metadata={"Cluster": {"FailureMessage": "not read"}})
    reason_by_description = {"failed": "no EFA device", "unhealthy": "DbUnreachable", "no reason": "", "no problem": ""}
    newest = overview(Session(), name).events[-4:]
    assert {event.description: event.failure for event in newest} == reason_by_description
    aws.refuse("sagemaker DescribeClusterEvent", code="AccessDeniedException", times=100)
    try:
        state = overview(Session(), name)
        assert {event.failure for event in state.events} == {""}
        assert [line.partition(":")[0] for line in state.missing].count("reasons of events") == 1
    finally:
        aws.refuse("sagemaker DescribeClusterEvent", code="AccessDeniedException", times=0)


def test_missing_nodes_of_a_continuous_cluster_are_told(name, monkeypatch):
    """AWS calls such a cluster InService without them, so a deployment names the groups that wait for nodes."""
    cluster = hyperpod.find(Session(), name)
    assert list(missing_nodes(Session(), name)) == []
    groups = tuple(replace(group, current_count=group.target_count - 1) for group in cluster.groups)
    assert next(iter(missing_nodes(Session(), "nowhere"))).startswith("nodes not counted: no cluster 'nowhere'")
    monkeypatch.setattr(hyperpod, "find", lambda *_: replace(cluster, groups=groups))
    assert [line.partition(",")[0] for line in missing_nodes(Session(), name)] == [
        "controller has 0 of 1 nodes",
        "workers has 1 of 2 nodes",
    ]


@pytest.mark.parametrize(("days", "is_told"), [(3, True), (30, False)])
def test_a_training_plan_that_ends_soon_is_told(aws, maker, *, days, is_told):
    """The line names the end and the commands that prolong the plan; the document has the end in any case."""
    sagemaker, instance_type, cluster_name = aws.client("sagemaker"), "ml.p5.48xlarge", f"planned-{days}"
    search = {"InstanceType": instance_type, "InstanceCount": 2, "TargetResources": ["hyperpod-cluster"]}
    (offering,) = sagemaker.search_training_plan_offerings(**search, DurationHours=24 * days)["TrainingPlanOfferings"]
    offering_id = offering["TrainingPlanOfferingId"]
    arn = sagemaker.create_training_plan(TrainingPlanName=cluster_name, TrainingPlanOfferingId=offering_id)[
        "TrainingPlanArn"
    ]
    ends_at = sagemaker.describe_training_plan(TrainingPlanName=arn)["EndTime"].astimezone(timezone.utc)
    maker.make(cluster_name, workers_have={"InstanceType": instance_type, "TrainingPlanArn": arn})
    snapshot = overview(Session(), cluster_name)
    (group,) = (group for group in document(snapshot).groups if group.name == "workers")
    assert group.plan_ends_at == ends_at
    assert snapshot.missing == ()
    stream = io.StringIO()
    Console(file=stream, width=400).print(render(snapshot, width=400))
    assert (f"back at {ends_at:%Y-%m-%d %H:%M} UTC" in stream.getvalue()) is is_told
    assert (f"--training-plan-arn {arn}" in stream.getvalue()) is is_told
