"""Nodes that reboot without Slurm's order: Slurm puts them down, and they return to service by themselves.

The API's BatchRebootClusterNodes is EC2's RebootInstances, of which Slurm does not know:
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_BatchRebootClusterNodes.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from podwright_bootstrap.contract import NODE_JSON, REBOOT_REASON, ProvisioningParameters, WorkerGroup
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.waiting import wait_for

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"
LIMIT_S = 600
SLURMCTLD_LOG = "/var/log/slurm/slurmctld.log"


@pytest.fixture(scope="module", params=["debian_13", "debian_12"])
def cluster(
    booted: Callable[..., NamespacedCluster],
    bundle: Callable[[ProvisioningParameters], Path],
    request: pytest.FixtureRequest,
) -> Iterator[NamespacedCluster]:
    """A cluster that the real lifecycle scripts have booted, with Slurm 24.11 and with 22.05."""
    parameters = ProvisioningParameters(
        cluster_name="demo", controller_group="controller", worker_groups=[WorkerGroup("workers", "gpu")]
    )
    cluster = booted(bundle(parameters), image=request.getfixturevalue(request.param))
    yield cluster
    cluster.stop()


def unexpected_reboots(cluster: NamespacedCluster, hostname: str) -> int:
    """Return how often slurmctld has put the node down for a reboot."""
    log = cluster.path(CONTROLLER, SLURMCTLD_LOG).read_text()
    return log.count(f"Node {hostname} unexpectedly rebooted")


def journal(cluster: NamespacedCluster, hostname: str) -> str:
    """Return what the unit that lets jobs onto the node has written since the node's last boot."""
    command = "journalctl --boot --no-pager --output cat --unit podwright-return.service"
    return cluster.run(command, host=hostname, user="root").stdout


def shown(cluster: NamespacedCluster, hostname: str) -> str:
    """Return Slurm's line about a node."""
    return cluster.run(f"scontrol show node --oneliner {hostname}", user="root").stdout


def sleeps(cluster: NamespacedCluster, hostname: str) -> bool:
    """Return whether the task of the job runs on the host."""
    return cluster.run("pgrep --exact sleep", host=hostname, user="root", check=False).returncode == 0


def wait_for_journal(cluster: NamespacedCluster, hostname: str, text: str) -> None:
    """Return when the unit has written the text since the node's last boot."""
    wait_for(
        lambda: text in journal(cluster, hostname),
        timeout_s=LIMIT_S,
        description=lambda: f"{text!r}; {journal(cluster, hostname)}\n{shown(cluster, hostname)}",
    )


def test_a_host_has_the_uptime_of_its_last_boot(cluster: NamespacedCluster) -> None:
    """Slurm recognizes a reboot by the uptime, which is not the machine's, in a session as in a service."""
    machine_uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    uptime_s = float(cluster.run("cat /proc/uptime", host=SECOND).stdout.split()[0])
    assert 0 < uptime_s < machine_uptime_s - 1
    of_service = cluster.run("systemd-run --quiet --pipe --wait cat /proc/uptime", host=SECOND, user="root").stdout
    assert abs(float(of_service.split()[0]) - uptime_s) < LIMIT_S


def test_an_idle_node_that_the_api_reboots_returns(cluster: NamespacedCluster) -> None:
    """Slurm puts it down, because HyperPod's ReturnToService is 1; its own unit lets jobs in again."""
    assert "ReturnToService         = 1" in cluster.run("scontrol show config").stdout
    before = unexpected_reboots(cluster, FIRST)
    cluster.reboot(FIRST)
    wait_for_journal(cluster, FIRST, f"let jobs onto {FIRST} again")
    cluster.wait_until_idle(timeout_s=LIMIT_S)
    assert unexpected_reboots(cluster, FIRST) == before + 1
    assert REBOOT_REASON not in shown(cluster, FIRST)
    assert sorted(cluster.run("srun --partition gpu -N 2 hostname").stdout.split()) == [FIRST, SECOND]


def test_a_job_resumes_on_a_node_that_crashes_and_comes_back(cluster: NamespacedCluster) -> None:
    """The node reboots by itself during a job of two nodes: Slurm requeues the job, which runs on both again."""
    job_id = int(cluster.run("sbatch --parsable -o /dev/null -p gpu -N 2 --wrap 'srun sleep 3600'").stdout)
    for host in (FIRST, SECOND):  # a step that only begins fails when its host is lost, and its job with it
        wait_for(partial(sleeps, cluster, host), timeout_s=LIMIT_S, description=lambda: f"the step of job {job_id}")
    before = unexpected_reboots(cluster, SECOND)
    cluster.kill(SECOND, how="power")
    cluster.reboot(SECOND)
    cluster.wait_for_job(job_id, frozenset({"RUNNING"}), restarts=1, timeout_s=LIMIT_S)
    assert sorted(cluster.job_hosts(job_id)) == [FIRST, SECOND]
    assert unexpected_reboots(cluster, SECOND) == before + 1
    cluster.run(f"scancel {job_id}", user="root")
    cluster.wait_until_idle(timeout_s=LIMIT_S)


def test_a_node_returns_whatever_slurm_has_added_to_its_own_reason(cluster: NamespacedCluster) -> None:
    """The reason is one that Slurm has given and added to, as when an operator orders a reboot of a node that is down.

    Slurm adds while the node is down, so the test gives it the whole text.
    """
    reason = f"{REBOOT_REASON} : reboot issued"
    cluster.run(f"scontrol update NodeName={FIRST} State=DOWN Reason='{reason}'", user="root")
    cluster.run("systemctl start podwright-return.service", host=FIRST, user="root")
    wait_for_journal(cluster, FIRST, f"let jobs onto {FIRST} again")
    cluster.wait_until_idle(timeout_s=LIMIT_S)


@pytest.mark.parametrize(("state", "reason"), [("DRAIN", "a disk is loud"), ("FAIL", "Action:Reboot")])
def test_a_node_that_somebody_else_holds_stays_out(cluster: NamespacedCluster, state: str, reason: str) -> None:
    """An operator has drained the node, or the health agent has failed it: a reboot does not let jobs in."""
    cluster.run(f"scontrol update NodeName={FIRST} State={state} Reason='{reason}'", user="root")
    cluster.reboot(FIRST)
    wait_for_journal(cluster, FIRST, f"Slurm itself has not put {FIRST} down")
    assert f"Reason={reason} [" in shown(cluster, FIRST)
    assert cluster.node_states()[FIRST] != "idle"
    cluster.run(f"scontrol update NodeName={FIRST} State=RESUME Reason=none", user="root")  # as `nodes undrain` does
    cluster.wait_until_idle(timeout_s=LIMIT_S)


def test_a_node_that_fails_a_check_stays_down_until_it_passes(cluster: NamespacedCluster) -> None:
    """A file that the boot wrote is another node's: no job starts until it is right, and nobody has to resume it."""
    cluster.run(
        f"mv {NODE_JSON} /root/ && sed s/{FIRST}/{SECOND}/ /root/node.json >{NODE_JSON}", host=FIRST, user="root"
    )
    cluster.reboot(FIRST)
    wait_for_journal(cluster, FIRST, f"{NODE_JSON} does not describe this node")
    assert cluster.node_states()[FIRST] == "down"
    cluster.run(f"mv /root/node.json {NODE_JSON}", host=FIRST, user="root")
    cluster.wait_until_idle(timeout_s=LIMIT_S)


def test_a_node_returns_after_a_silence_although_slurm_keeps_a_reason(cluster: NamespacedCluster) -> None:
    """Slurm 24.11 adds the silence to the reason of before, and leaves the node down; the node looks from time to time.

    Its timer does so every ten minutes, and slurmctld asks a node that is down for a sign of life about as often. The
    test waits for neither.
    """
    cluster.run(f"scontrol update NodeName={FIRST} State=DRAIN Reason='a disk is loud'", user="root")
    cluster.run(f"scontrol update NodeName={FIRST} State=RESUME", user="root")
    cluster.wait_until_idle(timeout_s=LIMIT_S)
    cluster.fabric.plug(FIRST, into=False)
    wait_for(
        lambda: cluster.node_states()[FIRST] == "down*",
        timeout_s=LIMIT_S,
        description=lambda: f"Slurm to notice the silence: {cluster.node_states()}",
    )
    cluster.fabric.plug(FIRST, into=True)
    timers = cluster.run("systemctl list-timers --no-pager podwright-return.timer", host=FIRST, user="root").stdout
    assert "podwright-return.timer" in timers
    cluster.run("systemctl restart slurmd podwright-return", host=FIRST, user="root")
    cluster.wait_until_idle(timeout_s=LIMIT_S)
