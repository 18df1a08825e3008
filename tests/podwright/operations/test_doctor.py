"""``podwright doctor`` on a cluster that podwright did not make."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from podwright.aws_session import Session
from podwright.cli import main
from podwright.operations.account import hyperpod
from podwright.operations.health import doctor
from podwright.operations.health.doctor import NAMED_WITHIN_S, down_in_slurm, missing_in_slurm
from podwright.operations.health.node_role import missing_actions
from podwright.operations.nodes.slurm_states import SINFO, SlurmState
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.documents import as_described
from podwright_testing.hyperpod import BUCKET, ClusterMaker

pytestmark = pytest.mark.usefixtures("folder")


def test_scripts_and_role_are_examined(
    aws: AwsStandIn, maker: ClusterMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows line ends, another archive than the script names, and every action that the role lacks are errors."""
    maker.make("patient")
    script = f"#!/bin/bash\r\narchive_sha256={'0' * 64}\n".encode()
    s3 = aws.client("s3")
    s3.put_object(Bucket=BUCKET, Key="patient/on_create.sh", Body=script)
    s3.put_object(Bucket=BUCKET, Key="patient/podwright_bootstrap.tar", Body=b"other")
    assert main(["doctor", "--cluster", "patient", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    as_described(answer)
    errors = [item for item in answer["findings"] if item["level"] == "error"]
    scripts = [item["message"] for item in errors if item["code"] == "changed-script"]
    assert sorted(scripts) == [
        f"s3://{BUCKET}/patient/on_create.sh has Windows line ends, which a shell does not run",
        f"s3://{BUCKET}/patient/podwright_bootstrap.tar is not the archive that on_create.sh was uploaded with",
    ]
    denied = [item["message"].partition(" may not ")[2].split(", ") for item in errors if item["code"] == "role-action"]
    assert {"s3:GetObject", "logs:PutLogEvents", "ssmmessages:OpenDataChannel"} <= {
        name for each in denied for name in each
    }
    assert len(denied) == 6  # one for each resource


def test_nodes_that_slurm_lacks_for_long_are_named(maker: ClusterMaker) -> None:
    """A compute node that slurm.conf does not name minutes after its boot is found, a younger one and heads are not."""
    maker.make("unnamed", workers=3)
    session = Session()
    nodes = hyperpod.nodes(session, hyperpod.find(session, "unnamed"))
    named, late, young = (node for node in nodes if node.role == "compute")
    now = late.launched_at + timedelta(seconds=NAMED_WITHIN_S + 1)
    listed = [replace(node, status="Running", launched_at=late.launched_at) for node in nodes]
    listed = [replace(node, launched_at=now) if node.slurm_name == young.slurm_name else node for node in listed]
    assert [node.slurm_name for node in missing_in_slurm(listed, {named.slurm_name}, now=now)] == [late.slurm_name]


def test_nodes_that_slurm_has_put_down_are_named(maker: ClusterMaker) -> None:
    """A compute node that runs and is down in Slurm is named with Slurm's reason; drained and lost nodes are not."""
    maker.make("down", workers=3)
    session = Session()
    nodes = hyperpod.nodes(session, hyperpod.find(session, "down"))
    rebooted, drained, lost = (node for node in nodes if node.role == "compute")
    listed = [replace(node, status="Failure" if node == lost else "Running") for node in nodes]
    states = {node.slurm_name: SlurmState("down", "Node unexpectedly rebooted") for node in nodes}
    states[drained.slurm_name] = SlurmState("drained", "a disk is loud")
    assert [(node.slurm_name, state.reason) for node, state in down_in_slurm(listed, states)] == [
        (rebooted.slurm_name, "Node unexpectedly rebooted")
    ]


def test_the_journal_of_the_unit_that_lets_jobs_in_is_named(
    maker: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that Slurm itself has put down returns once its own unit lets jobs in, whatever reason Slurm shows."""
    maker.make("journal", workers=5)
    session = Session()
    cluster = hyperpod.find(session, "journal")
    nodes = [replace(node, status="Running") for node in hyperpod.nodes(session, cluster) if node.role == "compute"]
    units = {
        "down|Node unexpectedly rebooted": "podwright-return",
        "down|none": "podwright-return",  # a second reboot, without accounting
        "down|a disk is loud : Not responding": "podwright-return",
        "down*|a disk is loud : Not responding": "slurmd",  # it is silent still
        "down|a disk is loud": "slurmd",
    }
    listed = "".join(f"{node.slurm_name}|{shown}\n" for node, shown in zip(nodes, units, strict=True))
    monkeypatch.setattr(doctor, "cluster_nodes", lambda *_: nodes)
    shell = SimpleNamespace(run=lambda line: listed if line == SINFO else "")
    monkeypatch.setattr(doctor.slurm_states, "controller_shell", lambda *_: shell)
    hints = [finding.hint for finding in doctor._nodes_in_slurm(session, cluster)]
    assert [hint.partition("` there says why")[0] for hint in hints] == [
        f"`journalctl -u {unit}" for unit in units.values()
    ]


def test_an_unknown_cluster_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first deployment the cluster's parts are left out, with one remark."""
    assert main(["doctor", "--cluster", "nowhere"]) == 0
    assert "no cluster 'nowhere'" in capsys.readouterr().out


def test_a_bucket_of_another_account_is_simulated_as_such(aws: AwsStandIn, maker: ClusterMaker) -> None:
    """Statements for the bucket's account alone let nodes read it, and no bucket of the cluster's account."""
    maker.make("guest")
    session, iam = Session(region=aws.region), aws.client("iam")
    own, other = session.account_id, "333344445555"
    statement = {
        "Effect": "Allow",
        "Action": "s3:*",
        "Resource": "*",
        "Condition": {"StringEquals": {"aws:ResourceAccount": other}},
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_role_policy(RoleName="node", PolicyName="guest", PolicyDocument=document)
    cluster = hyperpod.find(session, "guest")
    missing = {
        account: {action for _, action, _ in missing_actions(session, cluster, own, bucket_account=account)}
        for account in (own, other)
    }
    iam.delete_role_policy(RoleName="node", PolicyName="guest")
    assert missing[own] - missing[other] == {"s3:GetObject", "s3:ListBucket"}
