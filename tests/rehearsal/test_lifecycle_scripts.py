"""The lifecycle scripts on real hosts: their work survives a reboot, and SSH between hosts uses their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwright_bootstrap.contract import ProvisioningParameters, WorkerGroup
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_testing.boots import require_booted

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"
DNS_NAME, MOUNT_NAME = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", "abcdefgh"
STRICT = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"
SHOW_MOUNT = "findmnt --noheadings --types lustre --output SOURCE,FSTYPE --mountpoint /fsx"


@pytest.fixture(scope="module")
def scripts(bundle: Callable[[ProvisioningParameters], Path]) -> Path:
    """The real lifecycle scripts and the contract of a cluster that does not train."""
    return bundle(
        ProvisioningParameters(
            cluster_name="demo",
            controller_group="controller",
            worker_groups=[WorkerGroup("workers", "gpu")],
            fsx_dns_name=DNS_NAME,
            fsx_mountname=MOUNT_NAME,
        )
    )


@pytest.fixture(scope="module", params=["debian_13", "debian_12"])
def cluster(
    booted: Callable[..., NamespacedCluster], scripts: Path, request: pytest.FixtureRequest
) -> Iterator[NamespacedCluster]:
    """A cluster that the real lifecycle scripts have booted, with Slurm 24.11 and with 22.05."""
    cluster = booted(scripts, image=request.getfixturevalue(request.param))
    yield cluster
    cluster.stop()


def test_a_rebooted_host_is_what_it_was(cluster: NamespacedCluster, scripts: Path) -> None:
    """Disk and keys stay, memory does not; fstab is mounted, Slurm has the node, and the scripts find nothing to do."""
    cluster.run("touch /etc/kept /run/lost", host=FIRST, user="root")
    key = cluster.path(FIRST, "/etc/ssh/ssh_host_ed25519_key.pub").read_text()
    cluster.reboot(FIRST)
    cluster.wait_until_idle(timeout_s=600)
    assert cluster.run(SHOW_MOUNT, host=FIRST).stdout.split() == [f"{DNS_NAME}@tcp:/{MOUNT_NAME}", "lustre"]
    assert cluster.run("ls /etc/kept /run/lost", host=FIRST, check=False).stdout == "/etc/kept\n"
    assert cluster.path(FIRST, "/etc/ssh/ssh_host_ed25519_key.pub").read_text() == key
    assert sorted(cluster.run("srun --partition gpu -N 2 hostname").stdout.split()) == [FIRST, SECOND]
    assert ", 0 changes, " in cluster.boot_one(FIRST, scripts).log.read_text()


def test_a_rebooted_controller_knows_its_jobs(cluster: NamespacedCluster) -> None:
    """The controller comes back by itself, with the jobs that ran meanwhile."""
    job_id = int(cluster.run("sbatch --parsable -o /dev/null -p gpu --wrap 'sleep 2'").stdout)
    cluster.wait_for_job(job_id, frozenset({"RUNNING"}), timeout_s=600)
    cluster.reboot(CONTROLLER)
    cluster.wait_until_idle(timeout_s=600)
    assert cluster.job(job_id)["JobState"] == "COMPLETED"


def test_a_replaced_host_is_empty(cluster: NamespacedCluster, scripts: Path) -> None:
    """A replacement has the name and another instance, its disk is empty, and the scripts set it up from the start."""
    cluster.run("touch /etc/old", host=SECOND, user="root")
    booted = cluster.replace(SECOND, instance_id="i-0new", lifecycle=scripts)
    require_booted([booted])
    assert "mounted " in booted.log.read_text()
    assert not cluster.path(SECOND, "/etc/old").exists()
    assert "i-0new" in cluster.path(SECOND, "/opt/podwright/node.json").read_text()
    cluster.wait_until_idle(timeout_s=600)


def test_the_job_user_gets_from_host_to_host_and_no_impostor_is_trusted(cluster: NamespacedCluster) -> None:
    """By name and by address, with every host key checked; a host whose key is not the published one is refused."""
    for name in (FIRST, cluster.nodes[FIRST].private_ip):
        said = cluster.run(f"{STRICT} {name} hostname", host=CONTROLLER, user="ubuntu", check=False)
        assert said.stdout.strip() == FIRST, said
    keys = "/fsx/podwright/ssh/hosts"
    cluster.run(f"sed 's/^{CONTROLLER} /{FIRST} /' {keys}/{CONTROLLER} >{keys}/{FIRST}", user="root")
    refused = cluster.run(f"{STRICT} {FIRST} hostname", host=CONTROLLER, user="ubuntu", check=False)
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr
