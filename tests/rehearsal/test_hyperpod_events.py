"""Events of HyperPod in another order, or with other files, than a script expects: each from a public report."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podwright_bootstrap.contract import ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.profile import SETTINGS, Profile
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing.boots import require_booted

pytestmark = pytest.mark.hosts

CONTROLLER, FIRST, LATE, LAST = (f"ip-10-0-16-{number}" for number in (5, 6, 7, 8))
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    region="us-west-2",
    controller_group="controller",
    login_group=None,
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    nodes=NodeFeatures(),
)
TREE = (*SETTINGS, "TopologyPlugin=topology/tree # chosen by the service")
CROSSED = f"SwitchName=leaf1 Nodes={FIRST},{LAST}\nSwitchName=leaf2 Nodes={LATE}\nSwitchName=spine Switches=leaf[1-2]\n"
SHORT_S = 300


def test_nodes_are_named_late_and_topologies_come_empty(
    make_cluster: Callable[..., NamespacedCluster],
    make_node: Callable[..., Node],
    bundle: Callable[[ProvisioningParameters], Path],
) -> None:
    """A node boots before slurm.conf names it, and works once it does; jobs run without a topology, and follow one."""
    cluster = make_cluster(
        nodes=[make_node(CONTROLLER, role="controller"), *map(make_node, (FIRST, LATE, LAST))],
        profile=Profile(settings=TREE, late_nodes={LATE}, topology={"topology.conf": ""}),
    )
    cluster.start()
    results = cluster.boot(bundle(PARAMETERS), timeout_s=900)
    require_booted(results.values())
    assert "slurmctld does not know this node yet" in results[LATE].log.read_text()
    assert LATE not in root(cluster, "sinfo --noheader --format=%N --Node")
    assert root(cluster, "srun --nodes=2 --partition=gpu --time=1 hostname").split()

    cluster.name_nodes()
    cluster.wait_until_idle(timeout_s=SHORT_S)
    wait_for(
        lambda: "podwright-slurm-node.timer" not in root(cluster, "ls /etc/systemd/system", host=LATE),
        timeout_s=SHORT_S,
        description=lambda: f"{LATE} to go on with its checks",
    )

    cluster.path(CONTROLLER, "/opt/slurm/etc/topology.conf").write_text(CROSSED)
    cluster.rewrite_slurm_conf()  # The agent does after it has written the topology.
    wait_for(
        lambda: "SwitchAsNodeRank" in root(cluster, "scontrol show config"),
        timeout_s=SHORT_S,
        description=lambda: "ranks to follow the topology",
    )
    ranks = root(cluster, "srun --nodes=3 --partition=gpu --time=1 --label hostname").splitlines()
    assert sorted(ranks) == [f"0: {FIRST}", f"1: {LAST}", f"2: {LATE}"]
    assert cluster.path(CONTROLLER, "/opt/slurm/etc/topology.conf").read_text() == CROSSED


def test_slurmctld_that_does_not_start_says_why_on_all_nodes(
    make_cluster: Callable[..., NamespacedCluster], bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """The controller quotes slurmctld's own line, and workers stop with it instead of waiting 15 minutes."""
    cluster = make_cluster(profile=Profile(settings=(*SETTINGS, "SlurmctldTimeOut=5 TopologyShape=tree")))
    cluster.start()
    scripts = bundle(PARAMETERS)
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        results = list(pool.map(lambda name: cluster.boot_one(name, scripts, timeout_s=800), cluster.nodes))
    failures = [result.log.read_text().splitlines()[-1] for result in results]
    assert [result.exit_code for result in results] == [1] * len(results)
    assert all("at step slurm: " in line and "TopologyShape" in line for line in failures), failures


def root(cluster: NamespacedCluster, line: str, **where: str) -> str:
    """Return what a command prints as root, on the controller unless another host is named."""
    return cluster.run(line, user="root", **where).stdout
