"""Programs before and after jobs that slurm.conf names while nodes lack them: no node is drained for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podwright_bootstrap.contract import ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures, PamSlurmAdopt, Prolog
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_testing.boots import require_booted

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"
PLAIN = ProvisioningParameters(
    cluster_name="demo", controller_group="controller", worker_groups=[WorkerGroup("workers", "gpu")]
)
WITH_PROLOG = replace(PLAIN, nodes=NodeFeatures(prolog=Prolog(check=False, job_folder=False)))
LEFT_OUT = replace(WITH_PROLOG, nodes=replace(WITH_PROLOG.nodes, skip=("prolog",)))


@pytest.fixture(scope="module")
def cluster(
    booted: Callable[..., NamespacedCluster], bundle: Callable[[ProvisioningParameters], Path]
) -> NamespacedCluster:
    """A cluster in service without programs of jobs."""
    return booted(bundle(PLAIN))


def boot(cluster: NamespacedCluster, host: str, scripts: Path) -> None:
    """Boot one host of the running cluster with other scripts."""
    require_booted([cluster.boot_one(host, scripts)])


def run_jobs(cluster: NamespacedCluster) -> None:
    """Run two jobs on both nodes: the second only starts if the first has left both in service."""
    for _ in range(2):
        printed = cluster.run("srun --partition gpu --nodes 2 hostname", timeout_s=600).stdout
        assert sorted(printed.split()) == [FIRST, SECOND]
    cluster.wait_until_idle([FIRST, SECOND], timeout_s=600)


@pytest.mark.parametrize("parameters", [WITH_PROLOG, LEFT_OUT], ids=["switched-on", "left-out"])
def test_a_controller_that_boots_first_drains_no_node(
    cluster: NamespacedCluster,
    bundle: Callable[[ProvisioningParameters], Path],
    parameters: ProvisioningParameters,
) -> None:
    """slurm.conf names the programs of nodes.prolog, which nodes that booted earlier lack, and jobs run on them."""
    boot(cluster, CONTROLLER, bundle(parameters))
    assert "Alloc" in cluster.run("scontrol show config | grep PrologFlags").stdout
    for host in (FIRST, SECOND):
        assert not cluster.path(host, "/opt/podwright/prolog.d").exists()
    run_jobs(cluster)


def test_nodes_run_their_programs_as_soon_as_they_have_them(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """A node's boot adds its programs, and the site's own beside them run too; a failing one drains the node."""
    boot(cluster, CONTROLLER, bundle(WITH_PROLOG))
    for host in (FIRST, SECOND):
        boot(cluster, host, bundle(WITH_PROLOG))
    site = "printf '#!/bin/sh\\necho $SLURM_JOB_ID >>/root/{0}\\n' >/opt/podwright/{0}.d/60-site.sh"
    mode = "chmod 755 /opt/podwright/{0}.d/60-site.sh"
    for name in ("prolog", "epilog"):
        cluster.run(f"{site.format(name)}; {mode.format(name)}", host=FIRST, user="root")
    run_jobs(cluster)
    for name in ("prolog", "epilog"):
        assert len(cluster.path(FIRST, f"/root/{name}").read_text().split()) == 2
    cluster.run("echo exit 1 >>/opt/podwright/prolog.d/60-site.sh", host=FIRST, user="root")
    job = int(cluster.run("sbatch --parsable --partition gpu --output /dev/null --wrap true").stdout)
    ended = cluster.wait_for_job(job, timeout_s=600)
    assert (ended["JobState"], ended["NodeList"]) == ("COMPLETED", SECOND)
    assert cluster.node_states()[FIRST] == "drained"
    cluster.run("rm /opt/podwright/prolog.d/60-site.sh", host=FIRST, user="root")
    cluster.run(f"scontrol update NodeName={FIRST} State=RESUME", user="root")


def test_a_node_that_boots_without_the_feature_first_is_not_drained(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """While the controller still names the programs, and as a pattern of an older version, the node has some."""
    boot(cluster, FIRST, bundle(PLAIN))
    patterns = r"s@podwright-\(prolog\|epilog\).sh@/opt/podwright/\1.d/*@"
    own_part = "/opt/slurm/etc/podwright-slurm.conf"
    cluster.run(f"sed -i '{patterns}' {own_part} && scontrol reconfigure", user="root")
    assert "/opt/podwright/prolog.d/*" in cluster.run("scontrol show config").stdout
    run_jobs(cluster)
    boot(cluster, CONTROLLER, bundle(PLAIN))
    assert "podwright" not in cluster.run("scontrol show config | grep -E '^(Pro|Epi)log'").stdout
    run_jobs(cluster)


def test_settings_are_taken_without_a_restart_while_hyperpod_replaces_a_node(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """The watcher only reconfigures slurmctld, as HyperPod's agent does, and leaves the node's state alone.

    A restart of the controller, or a change of states, may end a replacement.
    https://github.com/awslabs/awsome-distributed-ai/pull/1107
    """
    contain = replace(PLAIN, nodes=NodeFeatures(pam_slurm_adopt=PamSlurmAdopt()))
    shutil.copytree(bundle(contain), cluster.path(CONTROLLER, "/root/contain"))
    invocation = "systemctl show --property=InvocationID --value slurmctld"
    before = cluster.run(invocation, user="root").stdout
    cluster.run("/root/contain/on_create.sh --only parameters", user="root")
    cluster.run(f"scontrol update NodeName={FIRST} State=FAIL Reason=Action:Replace", user="root")
    cluster.run("systemctl start podwright-slurm-conf.service", user="root")  # as a rewritten slurm.conf does
    assert "Contain" in cluster.run("scontrol show config | grep PrologFlags").stdout
    assert cluster.run(invocation, user="root").stdout == before
    assert cluster.node_states()[FIRST] == "fail"
    assert "Reason=Action:Replace [" in cluster.run(f"scontrol show node --oneliner {FIRST}").stdout
    cluster.run(f"scontrol update NodeName={FIRST} State=RESUME Reason=none", user="root")
