"""The metric of running jobs, with programs that print what Slurm's do."""

import sys

import pytest

from podwright_bootstrap.slurm import running_jobs


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Publish with sinfo's and squeue's answers; return the exit status and the AWS CLI's arguments."""

    def call(states: str, jobs: str = "", *, aws: str = 'echo "$@" > "$0.called"') -> tuple[int, str]:
        for name, line in (("sinfo", f"printf '{states}'"), ("squeue", f"printf '{jobs}'"), ("aws", aws)):
            path = tmp_path / name
            path.write_text(f"#!/bin/bash\n{line}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(sys, "argv", ["running_jobs", "demo", "us-west-2"])
        status = running_jobs.main()
        called = tmp_path / "aws.called"
        return status, called.read_text().strip() if called.exists() else ""

    return call


def test_the_number_of_running_jobs_is_published(publish):
    """In the namespace that the nodes' role may write to, for the cluster."""
    expected = (
        "cloudwatch put-metric-data --region us-west-2 --namespace /aws/sagemaker/Clusters --metric-name RunningJobs "
        "--dimensions ClusterName=demo --unit Count --value"
    )
    assert publish("idle\\nmixed\\n", "7\\n8\\n") == (0, f"{expected} 2")
    assert publish("idle\\ndrained\\n") == (0, f"{expected} 0")


@pytest.mark.parametrize("states", ["", "down*\\nidle*\\n", "down\\npowered_down~\\n"])
def test_a_cluster_without_compute_nodes_publishes_nothing(publish, states):
    """Nodes that are gone, down or do not respond make no cluster idle."""
    assert publish(states) == (0, "")


def test_a_refusal_is_one_line(publish, capsys):
    """AWS's last line and exit status 1 are left for the journal."""
    assert publish("idle\\n", aws="printf 'a\\nAccess denied\\n' >&2; exit 254")[0] == 1
    assert capsys.readouterr().err == "Access denied\n"
