"""Limits of partitions in slurm.conf's own lines."""

from __future__ import annotations

import pytest

from podwright_bootstrap.features import PartitionLimits
from podwright_bootstrap.slurm import partitions

SERVICES = "ClusterName=a\nPartitionName=gpu Nodes=ip-[1-2] MaxTime=INFINITE State=UP\nPartitionName=dev Nodes=ALL\n"
GPU = PartitionLimits("gpu", max_minutes=60, max_nodes=2, accounts=("research",))
LIMITED = (
    "ClusterName=a\n"
    "PartitionName=gpu Nodes=ip-[1-2] State=UP MaxTime=60 MaxNodes=2 AllowAccounts=research "
    "# podwright replaced: MaxTime=INFINITE MaxNodes= AllowAccounts=\n"
    "PartitionName=dev Nodes=ALL\n"
)


def test_limits_go_into_the_partitions_line_once():
    """A limit replaces the service's, other partitions stay, and a second time changes nothing."""
    assert partitions.limited(SERVICES, [GPU]) == LIMITED
    assert partitions.limited(LIMITED, [GPU]) == LIMITED


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ([], "PartitionName=gpu Nodes=ip-[1-2] State=UP MaxTime=INFINITE"),
        (
            [PartitionLimits("gpu", max_nodes=1)],
            "PartitionName=gpu Nodes=ip-[1-2] State=UP MaxTime=INFINITE MaxNodes=1 # podwright replaced: MaxNodes=",
        ),
    ],
)
def test_a_limit_that_is_gone_gives_the_services_value_back(wanted: list[PartitionLimits], line: str):
    """Fewer limits, or none, restore what the service wrote."""
    assert partitions.limited(LIMITED, wanted).splitlines()[1] == line


def test_a_scaled_partition_keeps_its_limits():
    """Other nodes that the agent writes into the line stay."""
    scaled = LIMITED.replace("ip-[1-2]", "ip-[1-9]")
    assert partitions.limited(scaled, [GPU]) == scaled
    assert partitions.missing(scaled, [GPU, PartitionLimits("cpu")]) == ["cpu"]
