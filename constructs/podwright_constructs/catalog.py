"""The instance types of SageMaker and EC2 with their hardware. Standard library only."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal, cast

from podwright_common.similar_names import similar_names

Accelerator = Literal["", "gpu", "neuron"]


class UnknownInstanceTypeError(ValueError):
    """The instance type does not exist; the message has the closest names."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is no instance type of the catalog. {name_hint(name)}")


@dataclass(frozen=True)
class InstanceType:
    """One row of the catalog; counts and sizes are per instance, accelerator memory per accelerator.

    ``nvme_disks`` are instance storage, which is empty on a replaced node.
    """

    name: str
    allowed_in_cluster: bool
    vcpus: int
    memory_gib: float
    max_threads_per_core: int
    accelerator: Accelerator
    accelerator_count: int
    accelerator_name: str
    accelerator_memory_gib: float
    efa_interfaces: int
    nvlink: bool
    nvme_disks: int

    @classmethod
    def of(cls, name: str) -> InstanceType:
        """The type of that name, as ``ml.p5.48xlarge``.

        Raises:
            UnknownInstanceTypeError: the catalog has no such name; closest names are offered.
        """
        try:
            return _catalog()[name]
        except KeyError:
            raise UnknownInstanceTypeError(name) from None

    @property
    def machine(self) -> str:
        """Its processors as ``uname -m`` calls them: in a family's name a g behind the number is for Graviton or Grace.

        https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
        """
        family = self.name.split(".")[1]
        return "aarch64" if "g" in re.sub(r"^[a-z]+\d+", "", family) else "x86_64"


def cluster_instance_types() -> tuple[str, ...]:
    """The names that the API accepts for a cluster's instance group.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
    """
    return tuple(name for name, instance_type in _catalog().items() if instance_type.allowed_in_cluster)


def name_hint(name: str) -> str:
    """The instance types that a misspelt name probably means, or the form of all names."""
    similar = similar_types(name)
    return f"Did you mean {' or '.join(similar)}?" if similar else "Names look like ml.p5.48xlarge."


def similar_types(name: str) -> list[str]:
    """Up to three instance types of clusters whose names are similar to ``name``, the most similar first."""
    spelling = name if name.startswith("ml.") else f"ml.{name}"
    return similar_names(spelling, cluster_instance_types(), limit=3, cutoff=0.75)


@lru_cache(maxsize=1)
def _catalog() -> dict[str, InstanceType]:
    text = files(__package__).joinpath("instance_types.csv").read_text(encoding="utf-8")
    return {row["instance_type"]: _instance_type(row) for row in csv.DictReader(text.splitlines())}


def _instance_type(row: dict[str, str]) -> InstanceType:
    return InstanceType(
        name=row["instance_type"],
        allowed_in_cluster=row["cluster"] == "yes",
        vcpus=int(row["vcpus"]),
        memory_gib=float(row["memory_gib"]),
        max_threads_per_core=int(row["max_threads_per_core"]),
        accelerator=cast("Accelerator", row["accelerator"]),
        accelerator_count=int(row["accelerator_count"]),
        accelerator_name=row["accelerator_name"],
        accelerator_memory_gib=float(row["accelerator_memory_gib"] or 0),
        efa_interfaces=int(row["efa_interfaces"]),
        nvlink=row["nvlink"] == "yes",
        nvme_disks=int(row["nvme_disks"]),
    )
