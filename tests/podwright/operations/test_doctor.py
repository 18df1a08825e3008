"""``podwright doctor`` on a cluster that podwright did not make."""

from __future__ import annotations

import json

import pytest

from podwright.cli import main
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


def test_an_unknown_cluster_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first deployment the cluster's parts are left out, with one remark."""
    assert main(["doctor", "--cluster", "nowhere"]) == 0
    assert "no cluster 'nowhere'" in capsys.readouterr().out
