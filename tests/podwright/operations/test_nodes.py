"""``podwright nodes``: replace, reboot and delete through the API."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from podwright.aws_session import Session
from podwright.cli import main
from podwright.errors import AwsError
from podwright.operations.account import hyperpod
from podwright.operations.nodes import api
from podwright.operations.output import age
from podwright_testing.documents import as_described

pytestmark = pytest.mark.usefixtures("folder")  # the environment that leads to the stand-in


@pytest.fixture(scope="module")
def name(maker):
    """Return the name of a cluster of one controller and 60 workers."""
    maker.make("changing", workers=60)
    return "changing"


@pytest.fixture
def found(name):
    return hyperpod.find(Session(), name)


def workers(found) -> list[hyperpod.Node]:
    return [node for node in hyperpod.nodes(Session(), found) if node.group == "workers"]


def test_replaced_nodes_keep_their_addresses(name, found, capsys):
    """Each named node gets a new instance; its Slurm name stays, and others are untouched."""
    before = workers(found)
    wanted = [before[0].slurm_name, before[1].instance_id]
    assert main(["nodes", "replace", *wanted, "--cluster", name, "--yes"]) == 0
    assert capsys.readouterr().out.count("accepted") == 2
    after = workers(found)
    assert [node.private_ip for node in after] == [node.private_ip for node in before]
    changed = [old.slurm_name for old, new in zip(before, after, strict=True) if old.instance_id != new.instance_id]
    assert changed == [node.slurm_name for node in before[:2]]


def test_many_nodes_go_in_calls_of_25(aws, name, capsys):
    """A whole group is rebooted in as many calls as it needs; the answer has every node."""
    aws.interrupt(at=1_000)
    assert main(["nodes", "reboot", "--group", "workers", "--cluster", name, "--yes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], len(answer["accepted"]), answer["refused"]) == ("podwright.nodes.reboot/1", 60, [])
    assert [call for call in aws.changing_calls() if "Batch" in call] == ["sagemaker BatchRebootClusterNodes"] * 3


def test_what_was_accepted_before_a_refusal_is_known(aws, found):
    """If a later call is refused, the nodes of the earlier ones count as accepted, the others carry the reason."""
    aws.interrupt(at=2, call="BatchRebootClusterNodes")
    results = list(api.apply(Session(), found, api.REBOOT, workers(found)))
    assert [result.accepted for result in results] == [True] * 25 + [False] * 35
    assert {result.code for result in results[25:]} == {"AccessDenied"}
    aws.interrupt(at=1, call="BatchRebootClusterNodes")
    with pytest.raises(AwsError, match="AWS denied sagemaker:BatchRebootClusterNodes"):
        list(api.apply(Session(), found, api.REBOOT, workers(found)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["replace", "controller", "--yes"], "runs Slurm's controller: AWS cannot replace it"),
        (["delete", "controller/1", "--yes"], "runs Slurm's controller: AWS cannot delete it"),
        (["reboot", "workers/1", "controller", "--yes"], "rebooting it needs --include-controller"),
        (["replace", "workers/1"], "no terminal to ask: confirm with --yes"),
        (["replace", "--yes"], "name the nodes to replace, or give --group NAME"),
        (["replace", "workers/1", "--group", "workers", "--yes"], "name the nodes to replace, or give --group NAME"),
        (["replace", "--group", "worker", "--yes"], "has no instance group 'worker': did you mean workers?"),
        (["list", "--group", "worker"], "did you mean workers?"),
    ],
)
def test_wrong_or_unconfirmed_changes_do_nothing(aws, name, capsys, arguments, expected):
    """A controller, a missing answer and a wrong name are status 2, before any call that changes something."""
    aws.interrupt(at=1_000)
    assert main(["nodes", *arguments, "--cluster", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert aws.changing_calls() == []


def test_a_controller_is_rebooted_on_request(name, capsys):
    """With --include-controller the controller is rebooted too."""
    assert main(["nodes", "reboot", "controller", "--include-controller", "--cluster", name, "--yes"]) == 0
    assert "accepted" in capsys.readouterr().out


def test_a_node_that_is_gone_is_refused_alone(name, found, capsys):
    """AWS's answer for each node is shown; one that it does not know is status 1."""
    node, gone = workers(found)[:2]
    main(["nodes", "replace", gone.instance_id, "--cluster", name, "--yes"])
    capsys.readouterr()
    results = list(api.apply(Session(), found, api.REPLACE, [gone, node]))
    assert [(result.node, result.code) for result in results] == [(gone, "InstanceIdNotFound"), (node, "")]


def test_deletion_names_the_count_to_write(maker, capsys):
    """Deleted nodes are gone, and the answer has the command that brings cluster.yaml up to date."""
    maker.make("shrinking", workers=3)
    assert main(["nodes", "delete", "workers/3", "--cluster", "shrinking", "--yes"]) == 0
    assert "`podwright scale workers 2`" in capsys.readouterr().out
    session = Session()
    found = hyperpod.find(session, "shrinking")
    assert (found.group("workers").target_count, len(hyperpod.nodes(session, found))) == (2, 3)


@pytest.fixture(scope="module")
def continuous(maker):
    """Return the name of a cluster with continuous provisioning."""
    maker.make("growing", api_mode=True, NodeProvisioningMode="Continuous", Orchestrator={"Slurm": {}})
    return "growing"


def test_added_nodes_come_in_calls_of_50(aws, continuous, capsys):
    """More nodes than one call takes are added, and the answer has the count for cluster.yaml."""
    aws.interrupt(at=1_000)
    assert main(["nodes", "add", "workers", "60", "--cluster", continuous, "--yes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["count"]) == ("podwright.nodes.add/1", 62)
    assert [len(result["nodes"]) for result in answer["results"]] == [50, 10]
    assert [call for call in aws.changing_calls() if "Batch" in call] == ["sagemaker BatchAddClusterNodes"] * 2
    assert hyperpod.find(Session(), continuous).group("workers").target_count == 62


def test_a_quota_stops_the_addition_and_what_came_stays_known(aws, continuous, capsys):
    """If a later call is refused, its row has AWS's reason; a refusal of the first names the way to the quota."""
    before = hyperpod.find(Session(), continuous).group("workers").target_count
    limit = "The account-level service limit is 62 Instances"
    aws.interrupt(at=2, call="BatchAddClusterNodes")
    assert main(["nodes", "add", "workers", "60", "--cluster", continuous, "--yes"]) == 1
    out = capsys.readouterr().out
    assert [line.split()[1:3] for line in out.splitlines()[1:3]] == [["50", "accepted"], ["10", "AccessDenied:"]]
    assert f"`podwright scale workers {before + 50}`" in out
    aws.refuse("sagemaker BatchAddClusterNodes", code="ResourceLimitExceeded", message=limit)
    assert main(["nodes", "add", "workers", "1", "--cluster", continuous, "--yes"]) == 3
    assert "`podwright check --live` names the quotas" in capsys.readouterr().err


def test_a_group_that_aws_refuses_is_a_row(continuous):
    """AWS's list of failures has a code and the number of nodes."""
    found = hyperpod.find(Session(), continuous)
    (result,) = api.add(Session(), found, "controller", 1)
    assert (result.code, result.refused, result.nodes) == ("InvalidInstanceGroupStatus", 1, ())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["workers", "0"], "N: got 0, need 1 to 6758"),
        (["workers", "6759"], "N: got 6759, need 1 to 6758"),
        (["controller", "1"], "runs Slurm's controller"),
        (["worker", "1"], "did you mean workers?"),
    ],
)
def test_wrong_additions_do_nothing(aws, continuous, capsys, arguments, expected):
    """A wrong number or group is status 2, before any call that changes something."""
    aws.interrupt(at=1_000)
    assert main(["nodes", "add", *arguments, "--cluster", continuous, "--yes"]) == 2
    assert expected in capsys.readouterr().err
    assert aws.changing_calls() == []


def test_addition_needs_continuous_provisioning(name, capsys):
    """On another cluster the hint is the command that scales it."""
    assert main(["nodes", "add", "workers", "1", "--cluster", name, "--yes"]) == 2
    assert "use `podwright scale workers 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("passed", "text"),
    [
        (timedelta(seconds=59), "59s"),
        (timedelta(minutes=9, seconds=59), "9m 59s"),
        (timedelta(minutes=12, seconds=36), "12m"),
        (timedelta(hours=23, minutes=59), "23h"),
        (timedelta(days=3, hours=4), "3d 4h"),
        (timedelta(days=120), "120d"),
    ],
)
def test_an_age_is_short(passed, text):
    """The column stays so narrow that the table of nodes fits a terminal of 80 columns at every age."""
    now = datetime.now(timezone.utc)
    assert age(now - passed, now=now) == text


def test_deep_health_checks_are_started_by_group(aws, name, capsys):
    """AWS checks the named nodes of a group, and no others, until they run again; a controller is refused."""
    cluster = hyperpod.find(Session(), name)
    running = {node.slurm_name for node in workers(cluster) if node.status == "Running"}
    checked = sorted(running)[:2]
    command = ["nodes", "check", *checked, "--cluster", name, "--yes", "--json"]
    aws.interrupt(at=1_000)
    with aws.stopped_clock():
        assert main([*command, "--deep", "instance-stress", "--deep", "instance-connectivity"]) == 0
        status_by_name = {node.slurm_name: node.status for node in workers(cluster)}
    assert {node for node, status in status_by_name.items() if status == "DeepHealthCheckInProgress"} == set(checked)
    assert aws.changing_calls() == ["sagemaker StartClusterHealthCheck"]
    document = json.loads(capsys.readouterr().out)
    as_described(document)
    assert document["checks"] == ["InstanceStress", "InstanceConnectivity"]
    assert main(["status", "--wait", "--cluster", name]) == 0
    assert {node.status for node in workers(cluster) if node.slurm_name in checked} == {"Running"}
    assert main(["nodes", "check", "controller", "--cluster", name, "--yes"]) == 2
    assert "runs no jobs" in capsys.readouterr().err


def test_a_check_that_aws_refuses_starts_nothing(name, capsys):
    """InstanceConnectivity needs two nodes, says AWS's answer."""
    node = workers(hyperpod.find(Session(), name))[-1]
    command = ["nodes", "check", node.slurm_name, "--cluster", name, "--yes", "--deep", "instance-connectivity"]
    assert main(command) == 3
    assert "InstanceConnectivity needs 2 instances of workers" in capsys.readouterr().err
