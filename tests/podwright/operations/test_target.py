"""The cluster that commands work on, the nodes that arguments name, and AWS's refusals in one line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from podwright.aws_session import Session
from podwright.cli import main
from podwright.errors import ArgumentError
from podwright.operations.account import hyperpod
from podwright.operations.target import add_target_arguments, target

USER = "arn:aws:sts::123456789012:assumed-role/dev/ada"
pytestmark = pytest.mark.usefixtures("folder")  # the environment that leads to the stand-in
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abc"
DENIED = f"User: {USER} is not authorized to perform: sagemaker:DescribeCluster on resource: {ARN}"


@pytest.fixture(scope="module")
def small(maker):
    """Return the name of a cluster of one controller and two workers."""
    maker.make("small")
    return "small"


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_target_arguments(parser)
    return parser.parse_args(arguments)


def refused(capsys, *arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its status and its one line."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return status, line


def test_the_file_of_the_folder_names_the_cluster(folder):
    """cluster.yaml gives name and region; arguments go first, and a file with other errors serves too."""
    (folder / "cluster.yaml").write_text("name: mine\nregion: eu-west-1\ncluster: {}\n", encoding="utf-8")
    found = target(options())
    assert (found.name, found.session.region, found.file) == ("mine", "eu-west-1", Path("cluster.yaml"))
    assert target(options("--region", "us-east-1")).session.region == "us-east-1"
    other = target(options("--cluster", "other"))
    assert (other.name, other.session.region, other.file) == ("other", "us-west-2", None)


def test_without_a_name_the_clusters_are_listed(capsys, small):
    """Neither argument nor file is a usage error that lists the region's clusters."""
    status, line = refused(capsys, "nodes", "list")
    assert status == 2
    assert line.startswith("podwright: no --cluster, and no name in cluster.yaml: name one: us-west-2 has ")
    assert small in line


@pytest.mark.parametrize("api_mode", [False, True])
def test_a_cluster_has_roles_partitions_and_names(maker, api_mode):
    """Roles come from the API, else from the parameters in S3; a node is found by each of its names."""
    name = f"roles-{api_mode}".lower()
    arn = maker.make(name, api_mode=api_mode)
    session = Session()
    found = hyperpod.find(session, name)
    assert [(group.name, group.role, group.partition) for group in found.groups] == [
        ("controller", "controller", ""),
        ("workers", "compute", "gpu"),
    ]
    nodes = hyperpod.nodes(session, found)
    assert [f"{node.group}/{node.index}" for node in nodes] == ["controller/1", "workers/1", "workers/2"]
    last = nodes[-1]
    words = [last.slurm_name, last.instance_id, last.private_ip, "workers/2"]
    assert hyperpod.select(found, nodes, words) == (last,)
    assert hyperpod.select(found, nodes, ["controller"]) == nodes[:1]
    assert found.session_target(last) == f"sagemaker-cluster:{arn.split('/')[-1]}_workers-{last.instance_id}"
    with pytest.raises(ArgumentError, match="has no node 'workers/3' and 'nobody'") as error:
        hyperpod.select(found, nodes, ["workers/3", last.instance_id, "nobody"])
    assert "did you mean workers/" in error.value.hint


def test_five_hundred_nodes_come_in_pages(maker, capsys):
    """All pages of a long list are read."""
    maker.make("large", workers=499)
    assert main(["nodes", "list", "--cluster", "large", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "podwright.nodes/1"
    assert len({node["instance_id"] for node in answer["nodes"]}) == 500
    assert answer["nodes"][-1]["slurm_name"].startswith("ip-10-1-")


def test_an_unknown_cluster_gets_the_closest_name(capsys, small):
    """A misspelt name is status 2, with the name that was meant."""
    status, line = refused(capsys, "nodes", "list", "--cluster", "smal")
    assert (status, line) == (2, f"podwright: no cluster 'smal' in us-west-2: did you mean {small}?")


def test_another_region_says_so(capsys, small):
    """AWS's refusal in a region that the credentials are not for names the region."""
    status, line = refused(capsys, "nodes", "list", "--cluster", small, "--region", "eu-west-1")
    assert status == 3
    assert "AWS in eu-west-1 does not accept these credentials (InvalidSignatureException" in line


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (
            "AccessDeniedException",
            f"{DENIED} because no identity-based policy allows the sagemaker:DescribeCluster action",
            f"on {ARN} to {USER}: allow sagemaker:DescribeCluster in the policy of your role",
        ),
        ("AccessDeniedException", f"{DENIED} with an explicit deny", "an explicit deny forbids it: ask who manages"),
        ("ExpiredTokenException", "The security token is expired", "the session of your AWS credentials has expired"),
        ("UnrecognizedClientException", "The security token is invalid", "does not accept these credentials"),
        ("ThrottlingException", "Rate exceeded", "AWS throttled sagemaker:DescribeCluster (ThrottlingException) in "),
        (
            "ValidationException",
            "1 validation\n error",
            "AWS refused sagemaker:DescribeCluster: ValidationException: 1",
        ),
    ],
)
def test_a_refusal_is_one_line_and_status_3(aws, capsys, monkeypatch, code, message, expected):
    """AWS's refusals name the call, the missing permission and what to do."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    aws.refuse("sagemaker DescribeCluster", code=code, message=message, times=2)
    status, line = refused(capsys, "nodes", "list", "--cluster", "any")
    aws.refuse("sagemaker DescribeCluster", code=code, times=0)
    assert status == 3
    assert expected in line


def test_throttled_calls_are_repeated(aws, small):
    """A call that AWS throttles once succeeds at the second attempt."""
    aws.refuse("sagemaker ListClusters", code="ThrottlingException")
    assert small in hyperpod.names(Session())


def test_no_network_is_one_line(capsys, monkeypatch):
    """An endpoint without a listener is status 3, with what may be in the way."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    status, line = refused(capsys, "nodes", "list", "--cluster", "any")
    assert status == 3
    assert "sagemaker in us-west-2 does not answer" in line
    assert "AWS_ENDPOINT_URL" in line


def test_no_credentials_is_one_line(folder, capsys, monkeypatch):
    """Without credentials the answer says how to sign in."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    status, line = refused(capsys, "nodes", "list", "--cluster", "any")
    assert (status, line.split(":")[1]) == (3, " no AWS credentials")
    assert "aws sso login" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--profile", "absent"], "profile (absent)"), ([], "no AWS region: give --region, or set AWS_REGION")],
)
def test_a_missing_setting_is_status_2(folder, capsys, monkeypatch, arguments, expected):
    """An unknown profile and a missing region are the caller's to set."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    status, line = refused(capsys, "nodes", "list", "--cluster", "any", *arguments)
    assert status == 2
    assert expected in line
