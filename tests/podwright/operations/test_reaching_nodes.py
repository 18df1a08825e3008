"""Obstacles on the way to a node are one line each, and ssh's configuration fits any cluster.

Sessions themselves are opened on hosts: tests/rehearsal/test_operations.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from podwright.aws_session import Session
from podwright.cli import main
from podwright.operations.account import hyperpod
from podwright.operations.jobs import submit
from podwright.operations.jobs.fetch import RemoteFile, not_exported, summary
from podwright.operations.jobs.preflight import refuse_run
from podwright_common.command_line import Parser
from podwright_rehearsal.run.lifecycle_logs import LifecycleLogs

pytestmark = pytest.mark.usefixtures("folder")  # the environment that leads to the stand-in
CALL = "ssm StartSession"


@pytest.fixture(scope="module")
def reach(maker):
    """Return the name of a cluster of one controller and two workers."""
    maker.make("reach")
    return "reach"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Put a session-manager-plugin on PATH that only prints its version; return a function that sets it."""

    def install(version="1.2.707.0"):
        program = tmp_path / "bin" / "session-manager-plugin"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def refused(capsys, *arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its status and its one line."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return status, line


@pytest.mark.parametrize(
    "command", [["connect"], ["forward", "6006"], ["jobs"], ["logs", "1"], ["fetch", "run"], ["collect"]]
)
def test_a_missing_plugin_is_named_with_its_page(capsys, reach, monkeypatch, tmp_path, command):
    """No session is started that nobody could open."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ssh").write_text("#!/bin/sh\n")
    (tmp_path / "ssh").chmod(0o755)
    status = main([*command, "--cluster", reach])
    shown = capsys.readouterr().err.splitlines()[-1]
    assert status == 1
    assert shown.startswith(
        "podwright: session-manager-plugin is not on PATH: install it: https://docs.aws.amazon.com/"
    )


def test_an_old_plugin_is_refused(capsys, reach, plugin):
    """A plugin that would want the token among its arguments, where every user of the machine reads it, is too old."""
    plugin("1.2.497.0")
    status, line = refused(capsys, "connect", "--cluster", reach)
    assert (status, "session-manager-plugin 1.2.497.0 is too old" in line) == (1, True)


def test_a_denied_session_names_the_permission(capsys, aws, reach, plugin):
    """AWS's refusal of StartSession ends with status 3 and the action."""
    plugin()
    aws.refuse(
        CALL,
        code="AccessDeniedException",
        message="User: arn:aws:iam::1:user/ada is not authorized to perform: ssm:StartSession on resource: "
        "arn:aws:ssm:us-west-2::document/AWS-StartInteractiveCommand",
    )
    status, line = refused(capsys, "connect", "--cluster", reach)
    assert status == 3
    assert "AWS denied ssm:StartSession on arn:aws:ssm:us-west-2::document/AWS-StartInteractiveCommand" in line


def test_a_node_that_is_gone_has_no_session(capsys, plugin):
    """An ssh configuration from before a replacement says what to do."""
    plugin()
    target = "sagemaker-cluster:abcdefghijkl_workers-i-0123456789abcdef0"
    status, line = refused(capsys, "ssh-proxy", target, "22")
    assert status == 3
    assert f"no session on {target}" in line
    assert "run `podwright ssh-config` again" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["connect", "--user", "a b; c"], "--user: got 'a b; c'"),
        (["forward", "70000"], "PORT: got '70000', need a port from 1 to 65535"),
        (["jobs", "--ended", "0"], "--ended: got '0'"),
        (["logs", "1", "--lines", "none"], "--lines: got 'none'"),
        (["logs"], "one of the arguments JOB|RUN --lifecycle --health --slurm is required"),
    ],
)
def test_wrong_arguments_end_with_usage(capsys, arguments, said):
    """They are named before anything is asked of AWS."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_submit_names_all_that_is_missing(capsys, folder):
    """Files, links that lead to themselves, devices, a number of nodes, two files of one name: one line."""
    (folder / "run.yaml").touch()
    (folder / "loop").symlink_to("loop")
    sent = [word for path in ("absent", "run.yaml", "loop", "/dev/zero") for word in ("--send", path)]
    status, line = refused(capsys, "submit", "run.yaml", *sent)
    assert status == 2
    assert "absent: no such file" in line
    assert "loop: no such file" in line
    assert "/dev/zero: neither a file nor a folder" in line
    assert "give --nodes N: a run.yaml does not say how many" in line
    assert "run.yaml: two files to send have this name; rename one of them" in line


RUN = "preset: llama3_8b\ntrain_batch_size: 1\nglobal_batch_size: 1024\nactivation_checkpointing_mode: selective\n"


def test_submit_refuses_a_run_of_nxd_training_before_it_sends_it(capsys, reach, folder, plugin):
    """The planner is here, and not on the nodes: memory, heads and flags are checked without a session."""
    plugin()
    (folder / "run.yaml").write_text(RUN)
    words = ["submit", "run.yaml", "--cluster", reach, "--nodes", "1"]
    launch = "--launch-arguments=--backend=nxdt --instance=ml.trn1.32xlarge"
    status, line = refused(capsys, *words, launch, "--arguments=--tensor-parallel=8")
    assert status == 2
    assert "memory: podwright plan predicts 35.0 GB of a device's 34.3" in line
    assert line.endswith("nothing was sent")
    _, line = refused(capsys, *words, launch, "--time-limit=1:00:00")
    assert "--time-limit: leave it out, --backend nxdt has none" in line
    _, line = refused(capsys, *words, "--launch-arguments=--backend=nxdt")
    assert "--instance: got nothing, need one of ml.trn1.32xlarge" in line  # this cluster has no Trainium


def test_the_cluster_says_which_trainium_a_run_gets(reach, folder):
    """The instance type is that of its nodes, unless a flag names one."""
    (folder / "run.yaml").write_text(RUN)
    parser = Parser()
    submit.add_arguments(parser)
    existing = hyperpod.find(Session(), reach).groups
    groups = [replace(group, instance_type="ml.trn1n.32xlarge") for group in existing if group.role == "compute"]
    for flags, added in (("", ["--instance=ml.trn1n.32xlarge"]), (" --instance=ml.trn1.32xlarge", [])):
        options = parser.parse_args(["run.yaml", "--nodes=1", f"--launch-arguments=--backend=nxdt{flags}"])
        assert refuse_run(options, groups) == added


def test_submit_holds_a_job_against_cluster_yaml(capsys, aws, reach, folder, plugin):
    """Nodes, ranks and accelerator are compared with the cluster's file, where it is here; flags come first."""
    plugin()
    workers = {"name": "workers", "role": "compute", "instance_type": "ml.g5.12xlarge", "count": 2, "partition": "gpu"}
    controller = {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1}
    network = {"source": "create", "availability_zone_id": "usw2-az1"}
    settings = {"name": reach, "region": aws.region, "network": network, "role": {"source": "create"}}
    settings |= {"lustre": {"source": "create"}, "bucket": {"source": "create"}}
    settings |= {"cluster": {"instance_groups": [controller, workers]}}
    (folder / "cluster.yaml").write_text(json.dumps(settings))
    (folder / "job.yaml").write_text("command: train.py\nnodes: 2\nmodel: {accelerator: H100}\n")
    status, line = refused(capsys, "submit", "job.yaml", "--nodes", "3", "--launch-arguments=--nproc-per-node=8")
    assert status == 2
    assert "the job needs 3 nodes, and partition gpu has 2" in line
    assert "the job starts 8 ranks on a node, and ml.g5.12xlarge has A10G for 4" in line
    assert "the job computes MFU for H100, but ml.g5.12xlarge has A10G" in line


@pytest.mark.parametrize("name", ["../up", "a/b", "-x", "a b", ""])
def test_a_run_is_one_folder(capsys, name):
    """A name does not lead out of the folder of runs, nor into the shell."""
    status, line = refused(capsys, "fetch", "--cluster", "any", "--", name)
    assert status == 2
    assert f"invalid run name {name!r}: start with a letter or digit" in line


def test_ssh_config_has_a_block_for_each_node(capsys, reach, folder, monkeypatch):
    """The controller has the cluster's name too; a host key belongs to an instance; nothing is written unasked."""
    monkeypatch.setenv("HOME", str(folder))
    assert main(["ssh-config", "--cluster", reach]) == 0
    text = capsys.readouterr().out
    assert text.count("Host reach") == 3
    assert text.startswith("Host reach reach-controller-1 reach-ip-10-1-")
    for keyword in ("HostKeyAlias i-", "StrictHostKeyChecking accept-new", "UserKnownHostsFile ", "ProxyCommand "):
        assert text.count(f"    {keyword}") == 3
    assert not (folder / ".ssh").exists()
    assert main(["ssh-config", "--cluster", reach, "workers/2", "--user", "ada", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (host,) = document["hosts"]
    assert (document["schema"], host["aliases"][0], host["options"]["User"]) == (
        "podwright.ssh-config/1",
        "reach-workers-2",
        "ada",
    )


@pytest.mark.parametrize("content", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n", "ssh-ed25519 AAAA\nssh-rsa B"])
def test_only_a_public_key_leaves_this_machine(capsys, reach, folder, content):
    """A private key, by mistake, or several keys are refused."""
    (folder / "key").write_text(content)
    status, line = refused(capsys, "ssh-config", "--cluster", reach, "--authorize", "key")
    assert (status, "--authorize key: need a file with one public key" in line) == (2, True)


def test_a_stream_is_read_to_its_last_line(aws, maker, capsys):
    """More lines than one page has, in order; a group that does not exist yet is said."""
    arn = maker.make("logged")
    status, line = refused(capsys, "logs", "--lifecycle", "--cluster", "logged")
    assert (status, "no node of this cluster has written a line" in line) == (1, True)
    logs = LifecycleLogs(aws.client("logs"), f"/aws/sagemaker/Clusters/logged/{arn.rpartition('/')[2]}")
    for number in range(12_000):
        logs.write(instance_group="workers", instance_id="i-0123456789abcdef0", line=f"line {number}")
    logs.flush()
    shown = ["logs", "--lifecycle", "i-0123456789abcdef0", "--cluster", "logged", "--json"]
    assert main([*shown, "--lines", "11000"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [item["message"] for item in lines] == [f"line {number}" for number in range(1_000, 12_000)]


def test_a_file_is_there_if_size_and_time_agree(folder):
    """A file that is truncated or older is fetched again."""
    (folder / "log").write_text("12345")
    os.utime(folder / "log", (100, 100))
    assert RemoteFile("log", 5, 100.7).is_at(folder)
    assert not RemoteFile("log", 6, 100.7).is_at(folder)
    assert not RemoteFile("log", 5, 200.0).is_at(folder)
    assert not RemoteFile("absent", 5, 100.0).is_at(folder)


def test_fetch_says_what_it_copied():
    """Files are counted in words, with a unit that suits their size."""
    to = Path("runs/first")
    assert summary([RemoteFile("a", 19_600, 0)], to, unchanged=24) == (
        "1 file, 19.6 kB, copied to runs/first; 24 files unchanged"
    )
    assert summary([RemoteFile("a", 3, 0), RemoteFile("b", 2_000_000, 0)], to, unchanged=0) == (
        "2 files, 2.0 MB, copied to runs/first"
    )
    assert summary([], to, unchanged=1) == "nothing new for runs/first; 1 file unchanged"


@pytest.mark.parametrize(
    ("paths", "lacks"),
    [
        (["config.yaml"], "no model in /fsx/runs/a/hf"),
        (["config.yaml", "hf/config.json"], ""),
        (["job.json", "job.yaml"], "no report in /fsx/runs/a/report"),
        (["job.json", "report/index.html"], ""),
    ],
)
def test_fetch_says_what_export_writes(paths, lacks):
    """Without the model, or another trainer's report, the line names what writes it first."""
    line = not_exported(paths, "/fsx/runs/a")
    assert line == (f"{lacks}: --export writes it on the cluster first" if lacks else "")
