"""SSH between hosts with the bootstrap's keys and real sshd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import podwright_bootstrap
from podwright_bootstrap.contract import PROVISIONING_PARAMETERS_NAME, ProvisioningParameters, WorkerGroup
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node

pytestmark = pytest.mark.hosts
SCRIPTS = Path(podwright_bootstrap.__file__).parents[1]
CONTROLLER, COMPUTE = "ip-10-0-16-5", "ip-10-0-16-6"
STRICT = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"


@pytest.fixture
def booted(
    make_cluster: Callable[..., NamespacedCluster], make_node: Callable[..., Node], tmp_path: Path
) -> NamespacedCluster:
    """A controller and a compute node with keys, booted by the bootstrap."""
    scripts = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    stand_in = make_cluster(nodes=[make_node(CONTROLLER, role="controller"), make_node(COMPUTE)])
    groups = {node.role: node.instance_group for node in stand_in.nodes.values()}
    contract = ProvisioningParameters(
        cluster_name="demo",
        controller_group=groups["controller"],
        worker_groups=[WorkerGroup(groups["compute"], "gpu")],
        fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        fsx_mountname="abcdefgh",
    )
    (scripts / PROVISIONING_PARAMETERS_NAME).write_text(json.dumps(contract.to_dict()))
    stand_in.start()
    for result in stand_in.boot(scripts).values():
        assert result.exit_code == 0, result.log.read_text()
    return stand_in


def test_the_job_user_gets_from_host_to_host_and_no_impostor_is_trusted(booted: NamespacedCluster) -> None:
    """By name and by address, with every host key checked; a host whose key is not the published one is refused."""
    for name in (COMPUTE, booted.nodes[COMPUTE].private_ip):
        said = booted.run(f"{STRICT} {name} hostname", host=CONTROLLER, user="ubuntu", check=False)
        assert said.stdout.strip() == COMPUTE, said
    keys = "/fsx/podwright/ssh/hosts"
    booted.run(f"sed 's/^{CONTROLLER} /{COMPUTE} /' {keys}/{CONTROLLER} >{keys}/{COMPUTE}", user="root")
    refused = booted.run(f"{STRICT} {COMPUTE} hostname", host=CONTROLLER, user="ubuntu", check=False)
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr
