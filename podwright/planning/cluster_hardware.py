"""The nodes of a run: instance type, count, accelerators, network and price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from podwright.errors import PodwrightError
from podwright.planning.accelerator import Accelerator
from podwright.planning.measured import MeasuredNetwork
from podwright.planning.on_demand import BASE_REGION, on_demand, rows
from podwright_common.exit_status import WRONG_INPUT
from podwright_constructs.catalog import InstanceType, cluster_instance_types

# Names in the catalog of instance types that do not give the memory.
_BY_MEMORY = {"A100": ((41, "A100-40GB"), (float("inf"), "A100-80GB"))}
_OTHER_NAMES = {"Inferentia2": "Trainium"}  # the same cores


class HardwareError(PodwrightError, ValueError):
    """The instance type has no accelerator or the count is wrong. The message names types that work."""

    exit_status = WRONG_INPUT


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """``nodes`` nodes of one instance type, with the data sheet's network or the one that was measured."""

    instance_type: str
    nodes: int
    measured: MeasuredNetwork | None = None
    region: str = BASE_REGION  # The plan takes this region's prices.

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise HardwareError(f"nodes: got {self.nodes}, need at least 1")
        if not self.instance.accelerator_count:
            raise HardwareError(
                f"{self.instance_type} has no accelerator. Use a GPU or Trainium type, such as ml.g5.12xlarge"
            )
        if self.measured and self.measured.instance_type != self.instance.name:
            raise HardwareError(f"measured on {self.measured.instance_type}, but the plan is for {self.instance.name}")

    @cached_property
    def instance(self) -> InstanceType:
        """The instance type in the catalog.

        Raises:
            UnknownInstanceTypeError: The message lists the closest names.
        """
        return InstanceType.of(
            self.instance_type if self.instance_type.startswith("ml.") else f"ml.{self.instance_type}"
        )

    @property
    def gpus(self) -> int:
        """Accelerators of all nodes."""
        return self.nodes * self.instance.accelerator_count

    @cached_property
    def accelerator(self) -> Accelerator:
        """One accelerator with its share of the node's network."""
        name = self.instance.accelerator_name
        for limit_gib, full_name in _BY_MEMORY.get(name, ()):
            if self.instance.accelerator_memory_gib <= limit_gib:
                name = full_name
                break
        device = Accelerator.of(_OTHER_NAMES.get(name, name))
        count = self.instance.accelerator_count
        domain = device.link_domain if device.link_domain > 16 else count  # noqa: PLR2004 - a rack, not a node
        device = replace(device, nic_gb_s=self.network_gb_s / count, link_domain=domain)
        return self.measured.of(device, count=count) if self.measured else device

    @property
    def network_gb_s(self) -> float:
        """Network bandwidth of one node, one way, in 1e9 bytes per second."""
        return _facts()[self.instance.name].network_gbit_s / 8

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all nodes: EC2 on-demand, or None if it is not public.

        HyperPod's own prices are not public.
        """
        price = on_demand(self.instance.name, self.region)
        return price.usd_per_hour * self.nodes if price else None

    @property
    def capacity_block_usd_per_hour(self) -> float | None:
        """The price of all nodes in an EC2 capacity block in December 2024, or None if EC2 listed none."""
        price = _facts()[self.instance.name].capacity_block_usd_per_hour
        return price * self.nodes if price else None


def accelerated_types() -> tuple[str, ...]:
    """Return the instance types that HyperPod offers and the planner can model."""
    return tuple(
        name for name in cluster_instance_types() if InstanceType.of(name).accelerator_count and name in _facts()
    )


def capacity_block_types() -> tuple[str, ...]:
    """Return the instance types with a known capacity block price."""
    return tuple(name for name, facts in _facts().items() if facts.capacity_block_usd_per_hour)


class _Facts(NamedTuple):
    network_gbit_s: float
    capacity_block_usd_per_hour: float | None


@lru_cache(maxsize=1)
def _facts() -> dict[str, _Facts]:
    return {
        row["instance_type"]: _Facts(
            float(row["network_gbit_s"] or 10),
            float(row["capacity_block_usd_per_hour"]) if row["capacity_block_usd_per_hour"] else None,
        )
        for row in rows("instances.csv")
    }
