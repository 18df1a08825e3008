"""The lifecycle scripts on hosts that lack or do what AWS's stock image and agent lack and do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from podwright_bootstrap.contract import ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures, Prolog
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.stock_image import LACKS, STOCK
from podwright_rehearsal.hosts.waiting import wait_for

pytestmark = pytest.mark.hosts
CONTROLLER, LOGIN, WORKER = "ip-10-0-16-5", "ip-10-0-16-8", "ip-10-0-16-6"


@pytest.fixture(scope="module")
def scripts(bundle: Callable[[ProvisioningParameters], Path]) -> Path:
    """The real lifecycle scripts of a cluster with a login group."""
    return bundle(
        ProvisioningParameters(
            cluster_name="demo",
            controller_group="controller",
            login_group="login",
            worker_groups=[WorkerGroup("workers", "gpu")],
            fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
            fsx_mountname="abcdefgh",
            nodes=NodeFeatures(prolog=Prolog()),
        )
    )


@pytest.fixture(scope="module")
def cluster(
    booted: Callable[..., NamespacedCluster], make_node: Callable[..., Node], debian_13: Path, scripts: Path
) -> NamespacedCluster:
    """A cluster on a stock image whose service leaves login nodes out of slurm.conf."""
    nodes = [make_node(CONTROLLER, role="controller"), make_node(LOGIN, role="login"), make_node(WORKER)]
    return booted(scripts, image=debian_13, nodes=nodes, image_lacks=STOCK, lists_login_nodes=False)


def test_the_image_lacks_what_it_should(cluster: NamespacedCluster) -> None:
    """Each part is gone from the host, so that the boot has shown that it needs none of them."""
    assert LACKS
    for line in ("python3 -m ensurepip --version", "pip --version", "ls /usr/lib/*/security/pam_slurm_adopt.so"):
        assert cluster.run(line, host=WORKER, user="root", check=False).returncode != 0, line


def test_a_login_node_that_slurm_does_not_know_submits_jobs(cluster: NamespacedCluster) -> None:
    """Its users reach the compute node; slurm.conf has no line about it."""
    assert LOGIN not in cluster.run("sinfo --noheader --Node", user="root").stdout
    assert cluster.run("srun --partition gpu hostname", host=LOGIN).stdout.strip() == WORKER


def test_what_the_agent_takes_away_comes_back(cluster: NamespacedCluster) -> None:
    """After the agent has rewritten slurm.conf, systemd's path unit puts our part back without anybody's doing."""

    def conf() -> str:
        return cluster.path(CONTROLLER, "/opt/slurm/etc/slurm.conf").read_text()

    before = conf()
    cluster.rewrite_slurm_conf()
    wait_for(lambda: conf() == before, timeout_s=600, what=lambda: f"our part of slurm.conf:\n{conf()[-500:]}")
    said = cluster.run("journalctl --no-pager --unit podwright-slurm-conf", user="root").stdout
    assert "slurm.conf" in said
