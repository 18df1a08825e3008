"""``podwright update-software``: versions, the rolling policy and the update itself."""

from __future__ import annotations

import argparse
import json
import time

import pytest

from podwright.cli import main
from podwright.operations.account import cluster
from podwright.operations.account.session import Session
from podwright.operations.errors import ArgumentError
from podwright.operations.nodes.update_software import add_arguments, deployment_config

pytestmark = pytest.mark.usefixtures("folder")  # the environment that leads to the stand-in
OLD, NEW = "2026.10.0", "2026.11.0"


@pytest.fixture(scope="module")
def name(maker):
    """Return the name of a cluster of one controller and three workers."""
    maker.make("updating", workers=3)
    return "updating"


@pytest.fixture
def update(name, capsys):
    """Run the command; return its status and its JSON. The cluster is InService before."""

    def run(*arguments: str) -> tuple[int, dict]:
        deadline = time.monotonic() + 600
        while cluster.find(Session(), name).status != "InService" and time.monotonic() < deadline:
            time.sleep(0.05)
        status = main(["update-software", "--cluster", name, "--json", *arguments])
        return status, json.loads(capsys.readouterr().out)

    return run


def versions(name) -> dict[str, str]:
    return {group.name: group.image_version for group in cluster.find(Session(), name).groups}


def test_one_group_is_updated_and_checked(name, update):
    """A named release goes to the named group alone; --check fails while a group is behind, then passes."""
    status, answer = update("--group", "workers", "--release", OLD, "--yes")
    assert (status, answer["schema"], answer["started"]) == (0, "podwright.update-software/1", True)
    assert versions(name) == {"controller": NEW, "workers": OLD}
    status, answer = update("--check")
    assert (status, answer["started"]) == (1, False)
    assert [group["image_status"] for group in answer["groups"]] == ["UpToDate", "UpdateAvailable"]
    assert update("--yes")[0] == 0
    assert versions(name) == {"controller": NEW, "workers": NEW}
    assert update("--check")[0] == 0


def test_batches_are_refused_on_slurm(name, capsys):
    """AWS keeps them for EKS: the refusal is one line, and nothing is updated."""
    arguments = ("update-software", "--cluster", name, "--release", OLD, "--batch", "50%", "--pause-s", "60", "--yes")
    assert main(arguments) == 3
    assert "updates in batches are available only for clusters orchestrated by EKS" in capsys.readouterr().err
    assert set(versions(name).values()) == {NEW}


def test_the_question_names_what_happens(name, capsys):
    """Without a yes nothing is updated, and the message says what would be."""
    assert main(["update-software", "--cluster", name]) == 2
    out, err = capsys.readouterr()
    assert "workers" in out
    (line,) = err.splitlines()
    assert f"Install SageMaker's newest image on 4 nodes of controller, workers of {name}?" in line
    assert "lifecycle scripts run again" in line
    assert "No job starts while controller is updated" in line
    assert "confirm with --yes" in line


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--batch", "4"], {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 4}}}),
        (
            ["--batch", "25%", "--pause-s", "600", "--rollback-alarm", "a", "--rollback-alarm", "b"],
            {
                "RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 25}},
                "WaitIntervalInSeconds": 600,
                "AutoRollbackConfiguration": [{"AlarmName": "a"}, {"AlarmName": "b"}],
            },
        ),
    ],
)
def test_the_policy_is_awss(arguments, expected):
    """Options become UpdateClusterSoftware's DeploymentConfig."""
    assert deployment_config(parsed(*arguments)) == expected


def test_a_policy_needs_a_batch_size():
    """A pause or an alarm alone would have no effect, so it is refused."""
    with pytest.raises(ArgumentError, match="--pause-s and --rollback-alarm need --batch"):
        deployment_config(parsed("--pause-s", "60", "--rollback-alarm", "a"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--batch", "0"], "need a number of nodes such as 4, or a percentage such as 25%"),
        (["--batch", "101%"], "a percentage such as 25%"),
        (["--pause-s", "3601"], "need whole seconds from 0 to 3600"),
        (["--image-id", "latest"], "need ami-… or default"),
    ],
)
def test_wrong_values_are_usage_errors(capsys, arguments, expected):
    """A value that AWS would refuse is refused before any call."""
    with pytest.raises(SystemExit) as stop:
        parsed(*arguments)
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err
