"""Dated releases of HyperPod: each difference has a source, and a cluster works on each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from podwright import cli
from podwright.check.load import load
from podwright.checkout import ROOT
from podwright_bootstrap.contract import ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures
from podwright_rehearsal import command, rehearse
from podwright_rehearsal.clusters import topology
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.node_files import AGENT_CONFIG
from podwright_rehearsal.clusters.profile import Release
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.releases import NEWEST, RELEASES
from podwright_rehearsal.hosts.debian_root import RELEASES as DEBIAN_RELEASES
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run.hosting import Debian12Hosts, Debian13Hosts, FlatHosts
from podwright_testing.boots import require_booted

CONTROLLER, FIRST, LAST = (f"ip-10-0-16-{number}" for number in (5, 6, 7))
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
SHORT_S = 300
HOSTS_SLURM = DEBIAN_RELEASES["debian-13"].slurm


@pytest.mark.parametrize(("older", "newer"), list(pairwise([None, *RELEASES.values()])))
def test_each_difference_has_a_source(older: Release | None, newer: Release) -> None:
    """A field that differs from the release before, or for the first from an empty one, names its public page."""
    older = older or Release(name="", slurm="", settings=(), sources={})
    names = {field.name for field in fields(Release)} - {"name", "sources"}
    changed = {name for name in names if getattr(older, name) != getattr(newer, name)}
    assert changed == newer.sources.keys()
    assert all(source.startswith("https://") for source in newer.sources.values())


def test_releases_can_be_named() -> None:
    """The command line offers all of them, in order, and the newest is the default."""
    assert rehearse.PROFILES == tuple(RELEASES) == tuple(sorted(RELEASES))
    assert RELEASES[rehearse.PROFILES[-1]] is NEWEST
    for name in RELEASES:
        assert cli._parser(arguments := ["rehearse", "--profile", name]).parse_args(arguments).profile == name


@pytest.mark.parametrize(
    ("name", "debian_13", "debian_12"),
    [
        ("2026-04", "2026-04", "Slurm 24.11 of profile 2026-04 is not available here; hosts run 22.05"),
        (
            "2026-07",
            "Slurm 25.11 of profile 2026-07 is not available here; hosts run 24.11",
            "Slurm 25.11 of profile 2026-07 is not available here; hosts run 22.05",
        ),
    ],
)
def test_a_slurm_that_hosts_lack_is_named(name: str, debian_13: str, debian_12: str) -> None:
    """The summary has this line; flat hosts rehearse no release."""
    release = RELEASES[name]
    assert command.describe(release, Debian13Hosts) == debian_13
    assert command.describe(release, Debian12Hosts) == debian_12
    assert "flat hosts have no files of the service" in command.describe(release, FlatHosts)


@pytest.mark.parametrize("accounting", ["create", "existing"])
def test_an_external_database_needs_the_image_that_has_it(accounting: str) -> None:
    """Older months refuse it for Slurm that the service sets up; the newest does not."""
    settings = load(ROOT / "examples/slurm_by_api/cluster.yaml")
    settings = settings.model_copy(update={"accounting": settings.accounting.model_copy(update={"source": accounting})})
    with pytest.raises(command.ArgumentError, match="2026-08-30"):
        command.require_accounting(settings, RELEASES["2026-07"])
    command.require_accounting(settings, NEWEST)
    command.require_accounting(load(ROOT / "cluster.yaml"), RELEASES["2025-11"])


def test_topology_files_are_in_the_form_that_slurm_reads(make_node: Callable[..., Node]) -> None:
    """Types without a topology get empty files, others a tree; older Slurms get topology.conf."""
    workers = [make_node(FIRST), make_node(LAST)]
    assert topology.readable("topology.yaml", "24.11") == topology.readable("topology.yaml", "22.05") == "topology.conf"
    assert (
        topology.readable("topology.yaml", "25.05") == topology.readable("topology.yaml", "25.11.8") == "topology.yaml"
    )
    assert topology.files("topology.conf", workers) == {"topology.conf": ""}
    assert topology.files("topology.yaml", workers) == {"topology.yaml": "[]\n"}
    workers = [replace(node, instance_type="ml.p5.48xlarge") for node in workers]
    beside = make_node("ip-10-0-16-8")
    assert topology.files("topology.conf", [*workers, beside])["topology.conf"].splitlines() == [
        f"SwitchName=leaf1 Nodes={FIRST}",
        f"SwitchName=leaf2 Nodes={LAST}",
        "SwitchName=leaf3 Nodes=ip-10-0-16-8",
        "SwitchName=spine Switches=leaf1,leaf2,leaf3",
    ]
    tree = topology.files("topology.yaml", workers)["topology.yaml"]
    assert f"- switch: leaf2\n        nodes: {LAST}\n" in tree
    assert "- switch: spine\n        children: leaf1,leaf2\n" in tree


@pytest.mark.hosts
@pytest.mark.parametrize("name", RELEASES)
def test_a_cluster_boots_and_runs_jobs_on_each_release(
    make_cluster: Callable[..., NamespacedCluster],
    make_node: Callable[..., Node],
    bundle: Callable[[ProvisioningParameters], Path],
    debian_13: Path,
    name: str,
) -> None:
    """All nodes boot, also one that slurm.conf names later, and each partition runs a job of two nodes.

    The newest release has nodes with a topology, and a tree; on the others the file is empty.
    """
    release = RELEASES[name]
    workers = [make_node(FIRST), make_node(LAST)]
    if release is NEWEST:
        workers = [replace(node, instance_type="ml.p5.48xlarge") for node in workers]
    nodes = [make_node(CONTROLLER, role="controller"), *workers]
    cluster = make_cluster(
        image=debian_13, nodes=nodes, profile=release.profile(nodes, hosts_slurm=HOSTS_SLURM, by_api=False)
    )
    cluster.start()
    planted = root(cluster, "cd /opt/slurm/etc && grep Topology slurm.conf; ls topology.conf; readlink /opt/slurm")
    assert planted.split() == {
        "2025-11": [],
        "2026-04": ["TopologyPlugin=topology/tree", "topology.conf"],
    }.get(name, ["TopologyPlugin=topology/tree", "topology.conf", "slurm-24.11"])
    if release.agent_config:
        config = json.loads(cluster.path(CONTROLLER, AGENT_CONFIG).read_text())
        assert config["SlurmConfiguration"].keys() == release.agent_config["SlurmConfiguration"].keys()
    require_booted(cluster.boot(bundle(PARAMETERS), timeout_s=900).values())
    if late_nodes := cluster.profile.late_nodes:
        assert list(late_nodes) == [LAST]
        cluster.name_nodes()
        root(cluster, "systemctl start podwright-slurm-conf.service")
        wait_for(lambda: joins(cluster, LAST), timeout_s=SHORT_S, description=lambda: f"{LAST} to join Slurm")
    cluster.wait_until_idle(timeout_s=SHORT_S)
    for partition in ("gpu", "dev"):
        hostnames = root(cluster, f"srun --nodes=2 --partition={partition} --time=1 hostname").split()
        assert sorted(hostnames) == [FIRST, LAST]
    if release is NEWEST:
        leaves = root(cluster, "scontrol show topology")
        assert f"Nodes={FIRST}" in leaves
        assert f"Nodes={LAST}" in leaves
    cluster.stop()


def joins(cluster: NamespacedCluster, hostname: str) -> bool:
    """Run the late node's checks at once, and return whether they have passed."""
    cluster.run("systemctl start podwright-slurm-node.service", host=hostname, user="root", check=False)
    return "podwright-slurm-node.timer" not in root(cluster, "ls /etc/systemd/system", host=hostname)


def root(cluster: NamespacedCluster, line: str, **where: str) -> str:
    """Return what a command prints as root, on the controller unless another host is named."""
    return cluster.run(line, user="root", check=False, **where).stdout  # type: ignore[arg-type]
