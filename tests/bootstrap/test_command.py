"""The bootstrap's command line."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.hosts


def test_dry_run_changes_nothing(make_host):
    """--dry-run names each step with its purpose, and touches neither host nor file system."""
    host = make_host(role="controller")
    boot = host.boot("./on_create.sh --dry-run")
    assert boot.exit_code == 0, boot.output
    assert "lustre          would run: The shared file system is mounted" in boot.output
    assert "environment     skipped: for compute nodes of clusters that train" in boot.output
    assert host.calls == []
    assert not (host.disk / "opt/podwright").exists()


def test_status_shows_how_the_last_boot_went(make_host):
    """--status shows the last results with the boot's exit code, and a repaired step counts."""
    host = make_host()
    broken = "sed -i 's/0 1 2 3/0 1/' /opt/shims/nvidia-smi"
    boot = host.boot(f"./on_create.sh --status; {broken}; ./on_create.sh >/dev/null; ./on_create.sh --status")
    assert boot.exit_code == 1
    assert "no boot is recorded in /opt/podwright/bootstrap.json" in boot.output
    assert len(boot.failures) == 1
    assert "at step accelerators" in boot.failures[0]
    repaired = host.boot(
        "sed -i 's/0 1;/0 1 2 3;/' /opt/shims/nvidia-smi; ./on_create.sh --only accelerators && ./on_create.sh --status"
    )
    assert repaired.exit_code == 0, repaired.output


def test_the_log_holds_what_was_printed(make_host):
    """Stdout and the log are the same, to the last line, and the exit code is that of the program."""
    host = make_host()
    boot = host.boot("rm /opt/shims/nvidia-smi; ./on_create.sh")
    assert boot.exit_code == 1
    assert host.read("var/log/provision/provisioning.log") == boot.output


def test_a_terminated_boot_leaves_no_program_behind(make_host):
    """SIGTERM ends the boot with the usual exit code, and the program it was waiting for."""
    host = make_host()
    shim = "echo $$ >/opt/mount; awk '{print $4}' /proc/$PPID/stat >/opt/boot; exec sleep 300"
    (host.shims / "mount.lustre").write_text(f"#!/bin/bash\n{shim}\n")
    boot = host.boot("""
        ./on_create.sh --only lustre &
        until [[ -s /opt/boot ]]; do sleep 0.05; done
        kill -TERM "$(cat /opt/boot)"
        wait $!
        echo "exit $?"
        while [[ -e /proc/$(cat /opt/mount) ]]; do sleep 0.05; done
    """)
    assert "exit 143" in boot.output


def test_an_unknown_step_is_refused(make_host):
    """--only names the steps there are."""
    boot = make_host().boot("./on_create.sh --only lusture")
    assert boot.exit_code == 2
    assert "lustre" in boot.output


def test_steps_can_be_left_out(make_host):
    """--skip leaves out the steps it names, as often as it is given; all others run."""
    boot = make_host(role="controller").boot("./on_create.sh --skip ssh --skip accelerators")
    assert boot.exit_code == 0, boot.output
    assert {"lustre", "slurm"} <= set(boot.results)
    assert not {"ssh", "accelerators"} & set(boot.results)


def test_each_step_writes_one_json_line(make_host):
    """Machines read the log too: host, role, outcome, changes and time of each step."""
    boot = make_host(role="controller").boot()
    events = [json.loads(line) for line in boot.output.splitlines() if line.startswith("{")]
    assert [event["step"] for event in events] == list(boot.results)
    assert {"host", "role", "outcome", "changes", "seconds"} <= set(events[0])
    assert events[0]["host"] == "ip-10-1-0-10"


def test_the_private_key_is_never_logged(make_host, cloud):
    """Neither the log nor any program's arguments hold the cluster's private key."""
    host = make_host()
    boot = host.boot()
    secret = (cloud.shared / "podwright/ssh/id_ed25519").read_text().splitlines()[1]
    assert secret not in boot.output
    assert secret not in "".join(host.calls)
