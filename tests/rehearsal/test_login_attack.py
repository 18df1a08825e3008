"""Hostile users with a shell on a login node, or on a controller that lets them in: nothing leaks, no node goes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podwright.operations.jobs import slurm_jobs
from podwright.operations.moving.controller import packed
from podwright_bootstrap.contract import ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import (
    ControllerLogins,
    MetadataAccess,
    NodeFeatures,
    Observability,
    Prolog,
    Remediation,
    Scratch,
    User,
)
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.stock_image import metadata_service
from podwright_rehearsal.hosts.description import File
from podwright_testing.boots import require_booted
from podwright_testing.debians import unpacked
from tests.bootstrap.test_metadata_access import PACKAGES as NFTABLES

pytestmark = pytest.mark.hosts
CONTROLLER, LOGIN, WORKER = "ip-10-0-16-5", "ip-10-0-16-8", "ip-10-0-16-6"
HOSTS = (CONTROLLER, LOGIN, WORKER)
ATTACK = Path(__file__).with_name("attack_by_login.sh")
IN_SERVICE = {"idle", "mixed", "allocated", "completing", "planned"}
NFT = "/opt/rehearsal/nftables"
PROGRAM = f'#!/bin/sh\nLD_LIBRARY_PATH=$(echo {NFT}/usr/lib/*-linux-gnu) exec {NFT}/usr/sbin/nft "$@"\n'
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    region="us-west-2",
    controller_group="controller",
    login_group="login",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    nodes=NodeFeatures(
        users=(User("ada", 2001), User("mallory", 2002)),
        motd=True,
        scratch=Scratch(),
        prolog=Prolog(),
        remediation=Remediation(max_percent=50, jobs=True),
        observability=Observability(),
        metadata_access=MetadataAccess(),
        skip=("observability", "dcgm"),  # what they measure is in tests/bootstrap
    ),
)
# What the LDAP step's password is to others: a file of root's in a folder of root's.
SECRET = "install -d -m 700 /fsx/podwright/secrets && install -m 600 /dev/null /fsx/podwright/secrets/ldap"  # noqa: S105
MEASURE = """
from pathlib import Path
from podwright_bootstrap.collectors.__main__ import measure
measure(["training", "slurm"], Path("/root"))
"""
SOURCES = [Path(__file__).parents[2] / name for name in ("training/podwright_training", "common/podwright_common")]
PACKAGE = "podwright-training"  # its folder on the file system, for the hosts' Python
# As batch scripts of training jobs do, before they start torchrun.
TRAIN = f"""
export PYTHONPATH=/fsx/{PACKAGE} MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
variables=$(python3 -B -m podwright_training.code_caches) && eval "$variables" || exit
stat --format='%U %a' "$TORCHINDUCTOR_CACHE_DIR" "${{TORCHINDUCTOR_CACHE_DIR%/*}}"
find "$TORCHINDUCTOR_CACHE_DIR" -mindepth 1
(. /fsx/{PACKAGE}/podwright_training/slurm/rendezvous.sh && echo "LEAK: met at $MASTER_PORT") 2>&1
true
"""
KEPT = "stat --format='%n %u %g %a' /etc /etc/passwd /etc/shadow /etc/sudoers; sha256sum /etc/shadow"


@pytest.fixture(scope="module")
def scripts(bundle: Callable[[ProvisioningParameters], Path]) -> Path:
    """The lifecycle scripts of a cluster with users, login nodes and no role for users."""
    return bundle(PARAMETERS)


@pytest.fixture(scope="module")
def cluster(
    booted: Callable[..., NamespacedCluster], make_node: Callable[..., Node], scripts: Path
) -> NamespacedCluster:
    """A controller, a login node and a compute node with a metadata service, nftables and a secret on /fsx."""
    nodes = [make_node(CONTROLLER, role="controller"), make_node(LOGIN, role="login"), make_node(WORKER)]
    cluster = booted(
        scripts,
        nodes=nodes,
        binds=[(unpacked("nftables", NFTABLES), NFT)],
        image_has={**metadata_service(), "/usr/sbin/nft": File(PROGRAM, mode=0o755)},
    )
    cluster.run(SECRET, host=CONTROLLER, user="root")
    cluster.run("umask 077; echo mine >~/secret; mkdir /fsx/runs/of-ada", host=LOGIN, user="ada")
    shutil.copy(ATTACK, cluster.directory / "fsx" / "runs" / ATTACK.name)
    without = shutil.ignore_patterns("__pycache__")
    for source in SOURCES:
        shutil.copytree(source, cluster.directory / "fsx" / PACKAGE / source.name, ignore=without)
    return cluster


def boot(cluster: NamespacedCluster, scripts: Path) -> str:
    """Boot all hosts; return the logs."""
    results = cluster.boot(scripts, timeout_s=600)
    require_booted(results.values())
    return "\n".join(result.log.read_text() for result in results.values())


def attacked(cluster: NamespacedCluster, scripts: Path, *, host: str) -> str:
    """Let Mallory attack from a host while Ada's job runs; return the logs of the boots that follow."""
    before = {name: cluster.run(KEPT, host=name, user="root").stdout for name in HOSTS}
    submit = f"sbatch --parsable --output=/dev/null --chdir=/ --nodelist={WORKER} --wrap 'sleep 3000'"
    job = int(cluster.run(submit, host=LOGIN, user="ada").stdout)
    cluster.wait_for_job(job, frozenset({"RUNNING"}))
    attack = f"cd /tmp && bash /fsx/runs/{ATTACK.name} {CONTROLLER} {WORKER} {job} ada"
    said = cluster.run(attack, host=host, user="mallory", timeout_s=900).stdout
    assert said.splitlines() == ["DONE"]

    claims = cluster.run("squeue --noheader --states=RUNNING --user=mallory --format=%k", user="root").stdout
    assert "podwright:" in claims
    cluster.run("systemctl start podwright-remediation", host=CONTROLLER, user="root")
    assert cluster.node_states()[WORKER] in IN_SERVICE
    # A job of Mallory's has the name of her run.
    assert cluster.run(slurm_jobs.of_run("of-ada"), host=LOGIN, user="ada").stdout == ""
    trained(cluster)
    moved(cluster)
    cluster.run("scancel --user=mallory", user="root")

    log = boot(cluster, scripts)
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert cluster.job(job)["Restarts"] == "0"
    cluster.run(f"scancel {job}", host=LOGIN, user="ada")
    cluster.wait_for_job(job)
    assert {name: cluster.run(KEPT, host=name, user="root").stdout for name in HOSTS} == before
    cluster.run(f"cd /opt/podwright/lib && python3 -c '{MEASURE}'", user="root")
    metrics = cluster.path(CONTROLLER, "/root/podwright.prom").read_text().splitlines()
    assert [line for line in metrics if not re.fullmatch(r"#.*|podwright_\w+(\{.*\})? \S+", line)] == []
    answer = cluster.run(f"srun --nodelist={WORKER} --chdir=/tmp id -un", host=LOGIN, user="ada", timeout_s=600)
    assert answer.stdout.strip() == "ada"
    assert cluster.node_states()[WORKER] in IN_SERVICE  # login nodes are drained, so that they get no jobs
    return log


def trained(cluster: NamespacedCluster) -> None:
    """Start as Ada's training does, on the node where Mallory's job has her ports and the names of her caches."""
    cluster.run("timeout 600 bash -c 'until [[ -e /tmp/beside ]]; do sleep 0.2; done'", host=WORKER, user="root")
    words = ["srun", f"--nodelist={WORKER}", "--chdir=/tmp", "bash", "-c", TRAIN]
    answer = cluster.run(words, host=LOGIN, user="ada", timeout_s=600)
    *caches, refusal = answer.stdout.splitlines()
    assert caches == ["ada 700", "ada 700"]
    assert refusal.startswith("error: another program listens on port 2")
    assert "podwright-2001: got owner uid 2002, mode 777" in answer.stderr


def moved(cluster: NamespacedCluster) -> None:
    """Record the waiting jobs as `podwright move` does, and submit Mallory's again: all are hers."""

    def program(*words: str) -> str:
        return str(cluster.run(["python3", "-c", packed("moved_jobs"), *words], host=CONTROLLER, user="root").stdout)

    cluster.run("rm -rf /root/move", host=CONTROLLER, user="root")
    program("close", "/root/move")
    record = json.loads(cluster.path(CONTROLLER, "/root/move/jobs.json").read_text())
    owners = {(job["fields"]["userid"], job["fields"]["username"]) for job in record["jobs"]}
    assert owners == {("2001", "ada"), ("2002", "mallory")}
    program("reopen", "/root/move")
    record["jobs"] = [item for item in record["jobs"] if item["fields"]["username"] == "mallory"]
    cluster.path(CONTROLLER, "/root/move/jobs.json").write_text(json.dumps(record))
    submitted = json.loads(program("submit", "/root/move").splitlines()[-1])
    assert submitted["refused"] == []
    numbers = ",".join(submitted["submitted"].values())
    users = cluster.run(f"squeue --noheader --states=all --format=%U --jobs={numbers}", user="root").stdout
    assert set(users.split()) == {"2002"}


def test_a_user_of_a_login_node_takes_nothing_and_no_node_down(cluster: NamespacedCluster, scripts: Path) -> None:
    """After all of the script nothing has leaked, hosts boot, Ada's job still runs, and her next one does."""
    log = attacked(cluster, scripts, host=LOGIN)
    assert "warning: mallory's home" in log


def test_a_user_of_a_controller_takes_nothing_and_no_node_down(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """The same from a shell on a controller that everybody may log in to."""
    open_to_all = replace(PARAMETERS.nodes, controller_logins=ControllerLogins(everybody=True))
    scripts = bundle(replace(PARAMETERS, nodes=open_to_all))
    boot(cluster, scripts)
    repair = "chmod 750 ~; rm -rf ~/.ssh ~/.profile ~/.profile.d ~/.hushlogin /fsx/runs/*ip-*"
    cluster.run(repair, host=LOGIN, user="mallory", check=False)
    attacked(cluster, scripts, host=CONTROLLER)


def test_a_user_who_comes_has_a_home_of_her_own(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """Grace, whose home Mallory tried to be before her, has it closed and empty of links."""
    users = (*PARAMETERS.nodes.users, User("grace", 2003))
    boot(cluster, bundle(replace(PARAMETERS, nodes=replace(PARAMETERS.nodes, users=users))))
    look = "stat --format='%U %G %a %F' /fsx/home/grace"
    assert cluster.run(look, host=LOGIN, user="root").stdout.strip() == "grace grace 750 directory"
