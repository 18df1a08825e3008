"""The lifecycle scripts as OnInitComplete: HyperPod has set Slurm up and mounted the file systems before they run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podwright_bootstrap.contract import InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import Account, NodeFeatures, Prolog, SlurmPolicy, User
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.set_up_by_api import MountedFileSystem
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing.boots import require_booted

pytestmark = pytest.mark.hosts
CONTROLLER, WORKER, LOGIN = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-8"
LUSTRE, HOMES = (f"fs-0123456789abcdef{digit}.fsx.us-west-2.amazonaws.com" for digit in (0, 1))
FILE_SYSTEMS = (
    MountedFileSystem(kind="lustre", source=f"{LUSTRE}@tcp:/abcdefgh", path="/fsx"),
    MountedFileSystem(kind="nfs", source=f"{HOMES}:/fsx", path="/home"),
)
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    controller_group="controller",
    login_group="login",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name=LUSTRE,
    fsx_mountname="abcdefgh",
    fsx_openzfs_dns_name=HOMES,
    region="us-west-2",
    instance_facts={"workers": InstanceFacts("gpu", 2, "A10G", 1)},
    slurm_by_api=True,
    nodes=NodeFeatures(
        users=(User("ada", uid=2001),),
        prolog=Prolog(),
        slurm=SlurmPolicy(accounts=(Account("research", users=("ada", "ubuntu")),)),
    ),
)


@pytest.fixture(scope="module")
def cluster(
    make_cluster: Callable[..., NamespacedCluster],
    make_node: Callable[..., Node],
    bundle: Callable[[ProvisioningParameters], Path],
) -> NamespacedCluster:
    """A cluster whose nodes ran the scripts twice, after the service had set it up."""
    cluster = make_cluster(
        nodes=[make_node(CONTROLLER, role="controller"), make_node(WORKER), make_node(LOGIN, role="login")],
        by_api=FILE_SYSTEMS,
    )
    cluster.start()
    scripts = bundle(PARAMETERS)
    shutil.copytree(scripts, cluster.directory / "fsx" / "scripts")
    for _ in range(2):
        require_booted(cluster.boot(scripts, timeout_s=600).values())
    cluster.wait_until_idle([WORKER])
    return cluster


@pytest.mark.parametrize("host", [CONTROLLER, WORKER, LOGIN])
def test_second_boot_changes_nothing(cluster: NamespacedCluster, host: str) -> None:
    """Nothing that the service has set up is set up again, and its file stays its own."""
    first, second = ((cluster.directory / f"{host}-boot-{number}.log").read_text() for number in (1, 2))
    assert ", 0 changes, " in second
    for ours in ("mounted ", "entered ", "started slurm", "wrote /opt/slurm/etc/slurmdbd.conf"):
        assert ours not in first, ours
    assert "the service" in cluster.path(host, "/opt/ml/config/provisioning_parameters.json").read_text()


@pytest.mark.parametrize(
    ("host", "daemon"),
    [(CONTROLLER, "slurmctld"), (CONTROLLER, "slurmdbd"), (WORKER, "slurmd"), (WORKER, "munge")],
)
def test_a_killed_daemon_that_the_service_started_comes_back(
    cluster: NamespacedCluster, host: str, daemon: str
) -> None:
    """The scripts add the restart that the image's units lack; the service's own settings stay."""

    def shown(name: str) -> str:
        return cluster.run(f"systemctl show --property={name} --value {daemon}", host=host, user="root").stdout.strip()

    assert shown("Restart") == "on-failure"
    pid = shown("MainPID")
    cluster.run(f"kill -KILL {pid}", host=host, user="root")
    wait_for(
        lambda: shown("MainPID") not in {"0", pid}, timeout_s=600, description=lambda: f"{daemon}: {shown('SubState')}"
    )
    cluster.wait_until_idle([WORKER], timeout_s=600)


def test_nodes_features_work(cluster: NamespacedCluster) -> None:
    """A user of cluster.yaml runs a job under the declared account, with the prolog that slurm.conf names."""
    shown = cluster.run("scontrol show config", host=LOGIN).stdout
    assert "= podwright-prolog.sh" in shown
    listed = cluster.run("srun --partition gpu --account research sh -c 'hostname; id -un'", host=LOGIN, user="ada")
    assert listed.stdout.split() == [WORKER, "ada"]
    row = cluster.run("sacctmgr --noheader --parsable2 show assoc user=ada format=account").stdout
    assert row.split() == ["research"]


def configuration(cluster: NamespacedCluster) -> str:
    """Return slurm.conf."""
    return cluster.path(CONTROLLER, "/opt/slurm/etc/slurm.conf").read_text()


def wait_for_configuration(cluster: NamespacedCluster, wanted: str) -> None:
    """Wait until slurm.conf is what it was."""
    wait_for(
        lambda: configuration(cluster) == wanted,
        timeout_s=600,
        description=lambda: f"our part of slurm.conf:\n{configuration(cluster)[-500:]}",
    )


def wait_for_journal(cluster: NamespacedCluster, text: str) -> None:
    """Wait until the unit that puts our part back has said this: it does so when Slurm has read the file again."""
    journal = "journalctl --no-pager --unit podwright-slurm-conf"
    wait_for(
        lambda: text in cluster.run(journal, user="root").stdout,
        timeout_s=600,
        description=lambda: f"{text!r} in the journal:\n{cluster.run(journal, user='root').stdout}",
    )


def test_jobs_wait_for_a_new_node_to_be_set_up(cluster: NamespacedCluster) -> None:
    """The scripts hold a node, on which Slurm runs already, until it is set up and has the plugin that Slurm loads."""
    plugin = "/usr/local/lib/slurm/spank_pyxis.so"  # any plugin, built late as Pyxis is
    build = f"install -D /opt/slurm/lib/auto_resume.so {plugin}"
    loads = f"{build} && echo 'required {plugin}' > /opt/slurm/etc/plugstack.conf && scontrol reconfigure"
    cluster.run(loads, user="root")
    wrong = cluster.directory / "wrong"
    shutil.copytree(cluster.directory / "fsx" / "scripts", wrong)
    parameters = replace(PARAMETERS, fsx_mountname="ijklmnop")
    (wrong / parameters.file_name).write_text(json.dumps(parameters.to_dict()))
    before = configuration(cluster)
    failed = cluster.replace(WORKER, instance_id="i-0fedcba9876543210", lifecycle=wrong)
    assert not failed.ok
    wait_for_configuration(cluster, before)
    wait_for_journal(cluster, "podwright-slurm.conf in /opt/slurm/etc/slurm.conf")  # a replacement had taken it away
    assert "drained" in cluster.node_states()[WORKER]
    assert cluster.run("systemctl is-active slurmd", host=WORKER).stdout.strip() == "active"
    cluster.run(build, host=WORKER, user="root")
    again = cluster.boot_one(WORKER, cluster.directory / "fsx" / "scripts")
    assert again.ok, again.describe()
    assert f"let jobs onto {WORKER}" in again.log.read_text()
    assert cluster.node_states()[WORKER] == "idle"
    assert cluster.run("srun --partition gpu hostname", host=LOGIN).stdout.strip() == WORKER


def test_what_the_agent_takes_away_comes_back(cluster: NamespacedCluster) -> None:
    """After the agent has rewritten slurm.conf, our part is put back beside its own."""
    before = configuration(cluster)
    cluster.rewrite_slurm_conf()
    wait_for_configuration(cluster, before)
