"""The check of a cluster's nodes, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node

COMPUTE = Node(
    hostname="ip-10-0-16-6",
    private_ip="10.0.16.6",
    instance_id="i-6",
    instance_group="workers",
    instance_type="ml.g5.12xlarge",
    role="compute",
    partition="gpu",
    accelerators=2,
    vcpus=48,
    memory_mib=190_000,
)
CONTROLLER = replace(
    COMPUTE, hostname="ip-10-0-16-5", private_ip="10.0.16.5", instance_id="i-5", role="controller", accelerators=0
)
LOGIN = replace(
    COMPUTE,
    hostname="ip-10-0-16-7",
    private_ip="10.0.16.7",
    instance_id="i-7",
    role="login",
    accelerators=0,
    partition=None,
)


@pytest.fixture
def describe(tmp_path: Path) -> Callable[..., NamespacedCluster]:
    """A stand-in of the nodes given, not started."""

    def make(*nodes: Node, relay: tuple[str, int] | None = None) -> NamespacedCluster:
        return NamespacedCluster(
            directory=tmp_path,
            image=tmp_path,
            cluster_name="demo",
            cluster_arn="arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl",
            subnet_cidr="10.0.16.0/20",
            nodes=nodes,
            shared=tmp_path / "fsx",
            relay=relay,
        )

    return make


def test_every_problem_is_reported_at_once(describe: Callable[..., NamespacedCluster]) -> None:
    """A wrong cluster is refused with all of its problems in one message."""
    stranger = replace(COMPUTE, private_ip="10.9.9.9", partition=None)
    with pytest.raises(ValueError, match="invalid cluster") as refused:
        describe(COMPUTE, stranger, relay=("192.0.2.1", 80))
    for problem in (
        "got 0 controllers, need at least 1",
        "two nodes have the hostname ip-10-0-16-6",
        "two nodes have the instance_id i-6",
        "10.9.9.9 is not in the subnet 10.0.16.0/20",
        "compute node ip-10-0-16-6 has no partition",
        "relay: got 192.0.2.1, need 127.0.0.1",
    ):
        assert problem in str(refused.value)


def test_slurm_conf_has_the_partitions_of_hyperpod(describe: Callable[..., NamespacedCluster]) -> None:
    """Compute and login nodes are in dev, the default; another partition holds its own nodes only; GPUs are files."""
    files = describe(CONTROLLER, COMPUTE, LOGIN)._files().slurm_files()
    lines = files["slurm.conf"].splitlines()
    assert "SlurmctldHost=ip-10-0-16-5(10.0.16.5)" in lines
    assert "NodeName=ip-10-0-16-6 NodeAddr=10.0.16.6 CPUs=48 RealMemory=190000 Gres=gpu:2 State=UNKNOWN" in lines
    assert "NodeName=ip-10-0-16-7 NodeAddr=10.0.16.7 CPUs=48 RealMemory=190000 State=UNKNOWN" in lines
    assert "PartitionName=dev Nodes=ip-10-0-16-6,ip-10-0-16-7 MaxTime=INFINITE State=UP Default=YES" in lines
    assert "PartitionName=gpu Nodes=ip-10-0-16-6 MaxTime=INFINITE State=UP" in lines
    assert not any(line.startswith("NodeName=ip-10-0-16-5") for line in lines)
    assert files["gres.conf"].splitlines() == [
        f"NodeName=ip-10-0-16-6 Name=gpu File=/dev/nvidia{index}" for index in range(2)
    ]


def test_urls_of_the_relay_become_the_hosts_own(tmp_path: Path) -> None:
    """An endpoint on this machine's loopback is rewritten to the subnet's first address, other values are not."""
    stand_in = NamespacedCluster(
        directory=tmp_path,
        image=tmp_path,
        cluster_name="demo",
        cluster_arn="arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl",
        subnet_cidr="10.0.16.0/20",
        nodes=[CONTROLLER],
        shared=tmp_path / "fsx",
        relay=("127.0.0.1", 5000),
        environment={"AWS_ENDPOINT_URL": "http://127.0.0.1:5000/x", "OTHER": "http://127.0.0.1:80"},
    )
    assert stand_in.environment["AWS_ENDPOINT_URL"] == "http://10.0.16.1:5000/x"
    assert stand_in.environment["OTHER"] == "http://127.0.0.1:80"
