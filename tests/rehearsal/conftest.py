"""One node image for all tests of the cluster stand-in, and a small cluster per module."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwright_bootstrap.contract import ProvisioningParameters
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.hosts.permission import why_not
from podwright_rehearsal.run import supplies
from podwright_testing.boots import require_booted
from podwright_testing.web_server import Quiet, serving

CHECKOUT = Path(__file__).parents[2]
LUSTRE_SOURCE = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com@tcp:/abcdefgh"
ON_CREATE = f"""#!/bin/bash
set -euo pipefail
echo "boot of $(hostname)"
mkdir -p /fsx
mount -t lustre -o noatime,flock {LUSTRE_SOURCE} /fsx
mkdir -p -m 1777 /fsx/scratch
read -r controller < controller_ip
if [[ $(hostname -i) == "$controller" ]]; then
  systemctl enable --now slurmctld
else
  echo "SLURMD_OPTIONS=--conf-server $controller" > /etc/default/slurmd
  systemctl daemon-reload
  until timeout 1 bash -c "exec 3<>/dev/tcp/$controller/6817" 2>/dev/null; do sleep 0.1; done
  systemctl enable --now slurmd
fi
echo "booted"
"""


@pytest.fixture(scope="session")
def node_image() -> Path:
    """The node image that hosts have here; of what $PODWRIGHT_TEST_HOSTS names and nothing else, if it is set."""
    wanted = os.environ.get("PODWRIGHT_TEST_HOSTS")
    release, why = supplies.available_release(RELEASES[wanted or "debian-13"])
    if release is None or (wanted and why):
        pytest.skip(f"no node image here: {why}")
    return supplies.node_image(release)


@pytest.fixture(scope="session")
def debian_13() -> Path:
    """The node image over Debian 13's root."""
    return image_of("debian-13")


@pytest.fixture(scope="session")
def debian_12() -> Path:
    """The node image over Debian 12's root."""
    return image_of("debian-12")


def image_of(name: str) -> Path:
    """Return the node image of a release; skip the test where it is not available."""
    if why := why_not() or supplies.why_no_image(RELEASES[name]):
        pytest.skip(why)
    return supplies.node_image(RELEASES[name])


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lifecycle scripts that mount the file system and start Slurm."""
    folder = tmp_path_factory.mktemp("lifecycle")
    (folder / "on_create.sh").write_text(ON_CREATE)
    (folder / "controller_ip").write_text("10.0.16.5\n")
    return folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ProvisioningParameters], Path]:
    """Make a folder of the product's lifecycle scripts and a cluster's parameters, as a node downloads it."""

    def make(parameters: ProvisioningParameters) -> Path:
        folder = tmp_path_factory.mktemp("bundle") / "scripts"
        source = CHECKOUT / "lifecycle_scripts"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        (folder / parameters.file_name).write_text(json.dumps(parameters.to_dict()))
        return folder

    return make


@pytest.fixture(scope="module")
def web_server() -> Iterator[tuple[str, int]]:
    """An HTTP server on this machine's loopback that says "hello from the machine", or 8 MiB of zeros for /large."""

    class Hello(Quiet, http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bytes(8 << 20) if self.path == "/large" else b"hello from the machine"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

    with serving(Hello) as address:
        yield address


@pytest.fixture(scope="module")
def make_cluster(
    node_image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., NamespacedCluster]]:
    """Make stand-ins of a controller and two compute nodes, not started; all are stopped in the end."""
    made: list[NamespacedCluster] = []
    numbers = itertools.count(1)

    def make(**changes: object) -> NamespacedCluster:
        directory = tmp_path_factory.mktemp(f"cluster-{next(numbers)}")
        arguments = {
            "directory": directory,
            "image": node_image,
            "cluster_name": "demo",
            "cluster_arn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl",
            "subnet_cidr": "10.0.16.0/20",
            "nodes": [node("ip-10-0-16-5", role="controller"), node("ip-10-0-16-6"), node("ip-10-0-16-7")],
            "shared": directory / "fsx",
        }
        made.append(NamespacedCluster(**{**arguments, **changes}))
        return made[-1]

    yield make
    for stand_in in made:
        stand_in.stop()


@pytest.fixture(scope="module")
def booted(make_cluster: Callable[..., NamespacedCluster]) -> Callable[..., NamespacedCluster]:
    """Make a cluster and boot its hosts so many times; its compute nodes are idle."""

    def make(scripts: Path, *, boots: int = 1, **changes: object) -> NamespacedCluster:
        cluster = make_cluster(**changes)
        cluster.start()
        for _ in range(boots):
            require_booted(cluster.boot(scripts, timeout_s=600).values())
        cluster.wait_until_idle(timeout_s=600)
        return cluster

    return make


@pytest.fixture(scope="session")
def make_node() -> Callable[..., Node]:
    """Nodes of a test cluster."""
    return node


def node(hostname: str, role: str = "compute") -> Node:
    """A node of the test cluster; compute nodes have two accelerators."""
    compute = role == "compute"
    return Node(
        hostname=hostname,
        private_ip=hostname.removeprefix("ip-").replace("-", "."),
        instance_id=f"i-of-{hostname}",
        instance_group="workers" if compute else role,
        instance_type="ml.g5.12xlarge" if compute else "ml.m5.xlarge",
        role=role,
        partition="gpu" if compute else None,
        accelerators=2 if compute else 0,
        vcpus=48,
        memory_mib=190_000,
    )
