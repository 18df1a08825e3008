"""Hosts on a Debian root of their own: real systemd, journald and Slurm 24.11."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwright_bootstrap.contract import REBOOT_REASON
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.leftovers import leftovers
from podwright_rehearsal.hosts.waiting import wait_for

pytestmark = pytest.mark.hosts
CONTROLLER, WORKER, OTHER = HOSTS = ["ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"]


@pytest.fixture(scope="module")
def cluster(booted: Callable[..., NamespacedCluster], debian_13: Path, lifecycle: Path) -> Iterator[NamespacedCluster]:
    """A booted cluster whose services are given a region."""
    environment = {"AWS_DEFAULT_REGION": "us-west-2", "PERCENT": "50%"}
    cluster = booted(lifecycle, image=debian_13, environment=environment)
    yield cluster
    cluster.stop()
    assert leftovers(cluster.directory) == []


def as_root(cluster: NamespacedCluster, line: str, *, host: str = WORKER) -> str:
    """Return the output of root's command on a host, with its exit status unless that is 0."""
    done = cluster.run(line, host=host, user="root", check=False)
    return done.stdout.strip() + (f" (exit {done.returncode})" if done.returncode else "")


def resume_after_reboot(cluster: NamespacedCluster, host: str) -> None:
    """Let jobs onto a node that Slurm has put down for its reboot: no unit of ours is on these hosts."""
    wait_for(
        lambda: REBOOT_REASON in as_root(cluster, f"scontrol show node {host}", host=CONTROLLER),
        timeout_s=600,
        description=lambda: f"Slurm to notice the reboot: {cluster.node_states()}",
    )
    as_root(cluster, f"scontrol update NodeName={host} State=RESUME", host=CONTROLLER)
    cluster.wait_until_idle([host], timeout_s=600)


@pytest.mark.parametrize("host", HOSTS)
def test_systemd_runs_the_host(cluster: NamespacedCluster, host: str) -> None:
    """PID 1 is systemd, every unit started, and the host has a machine id of its own."""
    assert as_root(cluster, "cat /proc/1/comm", host=host) == "systemd"
    assert as_root(cluster, "systemctl --failed --no-legend", host=host) == ""
    assert as_root(cluster, "systemctl is-system-running", host=host) == "running"
    others = {as_root(cluster, "cat /etc/machine-id", host=name) for name in HOSTS}
    assert len(others) == len(HOSTS)


def test_slurm_is_of_hyperpods_generation(cluster: NamespacedCluster) -> None:
    """Jobs run under Slurm 24.11, and srun has HyperPod's option."""
    assert as_root(cluster, "sinfo --version", host=CONTROLLER).startswith("slurm-wlm 24.11")
    printed = cluster.run("srun --auto-resume=1 -N 2 hostname").stdout
    assert sorted(printed.split()) == [WORKER, OTHER]


def test_services_get_the_environment(cluster: NamespacedCluster) -> None:
    """A service has the variables of an instance's role, whatever characters they have."""
    printed = as_root(cluster, "systemd-run --quiet --pipe --wait env | grep -E 'AWS_|PERCENT' | sort")
    assert printed.splitlines() == ["AWS_DEFAULT_REGION=us-west-2", "PERCENT=50%"]


def test_the_journal_has_what_a_service_says(cluster: NamespacedCluster) -> None:
    """The journal of a unit can be read."""
    assert "slurmd" in as_root(cluster, "journalctl --unit slurmd --no-pager")


def test_a_host_sees_only_its_own_control_groups(cluster: NamespacedCluster) -> None:
    """Its slurmd is in the host's own slice; no other host's group is visible."""
    pid = as_root(cluster, "systemctl show --property MainPID --value slurmd")
    assert as_root(cluster, f"systemctl whoami {pid}") == "slurmd.service"
    assert as_root(cluster, "ls -d /sys/fs/cgroup/ip-* 2>/dev/null | wc -l") == "0"


def test_a_reboot_keeps_the_disk_and_starts_what_is_enabled(cluster: NamespacedCluster) -> None:
    """After `systemctl reboot` machine id and units are there, memory is empty, and resumed, the node takes jobs."""
    before = as_root(cluster, "cat /etc/machine-id; touch /run/in-memory /root/on-disk")
    old = cluster.fabric.init(WORKER)
    cluster.reboot(WORKER)
    assert cluster.fabric.init(WORKER) != old
    assert as_root(cluster, "cat /etc/machine-id; ls /run/in-memory /root/on-disk 2>/dev/null") == (
        f"{before}\n/root/on-disk (exit 2)"
    )
    resume_after_reboot(cluster, WORKER)
    assert cluster.run(["srun", "--nodelist", WORKER, "hostname"]).stdout.strip() == WORKER


def test_a_host_without_processes_resets_connections(cluster: NamespacedCluster) -> None:
    """Not even systemd brings a service back, until the host is started again."""
    cluster.kill(OTHER, how="processes")
    probe = "timeout 5 bash -c 'exec 3<>/dev/tcp/10.0.16.7/22'"
    assert "(exit 1)" in as_root(cluster, probe)
    cluster.fabric.power_off(OTHER)
    cluster.reboot(OTHER)
    resume_after_reboot(cluster, OTHER)


def test_a_host_powers_itself_off(cluster: NamespacedCluster) -> None:
    """After `systemctl poweroff` nothing of the host is left, and Slurm calls its node down."""
    init = Path(f"/proc/{cluster.fabric.init(OTHER)}")
    as_root(cluster, "systemctl poweroff", host=OTHER)
    wait_for(lambda: not init.exists(), timeout_s=600, description=lambda: f"the end of {OTHER}")
    wait_for(
        lambda: cluster.node_states()[OTHER].startswith("down"),
        timeout_s=600,
        description=lambda: f"Slurm to notice: {cluster.node_states()}",
    )
