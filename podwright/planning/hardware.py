"""The machines of a run: what the catalog of instance types says, in the planner's words."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import NamedTuple

from podwright.planning.accelerator import Accelerator
from podwright_constructs.catalog import InstanceType, cluster_instance_types

# Of the names in the catalog of instance types that leave the memory open.
_BY_MEMORY = {"A100": ((41, "A100-40GB"), (float("inf"), "A100-80GB"))}
_OTHER_NAMES = {"Inferentia2": "Trainium"}  # the same cores


class HardwareError(ValueError):
    """The machines cannot train; the message says what can."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """``nodes`` machines of one type."""

    instance_type: str
    nodes: int

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise HardwareError(f"nodes is {self.nodes}: must be at least 1")
        if not self.instance.accelerator_count:
            raise HardwareError(
                f"{self.instance_type} has no accelerator; take one of {', '.join(accelerated_types())}"
            )

    @cached_property
    def instance(self) -> InstanceType:
        """The catalog's row; an unknown name raises its ``UnknownInstanceTypeError`` with the closest ones."""
        return InstanceType.of(
            self.instance_type if self.instance_type.startswith("ml.") else f"ml.{self.instance_type}"
        )

    @property
    def gpus(self) -> int:
        """Accelerators of all machines."""
        return self.nodes * self.instance.accelerator_count

    @cached_property
    def accelerator(self) -> Accelerator:
        """One accelerator with its share of this type's network."""
        name = self.instance.accelerator_name
        for limit_gib, full_name in _BY_MEMORY.get(name, ()):
            if self.instance.accelerator_memory_gib <= limit_gib:
                name = full_name
                break
        device = Accelerator.of(_OTHER_NAMES.get(name, name))
        count = self.instance.accelerator_count
        domain = device.link_domain if device.link_domain > 16 else count  # noqa: PLR2004 - a rack, not a machine
        return replace(device, nic_gb_s=self.network_gb_s / count, link_domain=domain)

    @property
    def network_gb_s(self) -> float:
        """Of one machine, one way, in 1e9 bytes per second."""
        return _facts()[self.instance.name].network_gbit_s / 8

    @property
    def usd_per_hour(self) -> float | None:
        """All machines at EC2's on-demand price in us-east-1, None where it is not public.

        HyperPod prints no prices.
        """
        price = _facts()[self.instance.name].on_demand_usd_per_hour
        return price * self.nodes if price else None

    @property
    def capacity_block_usd_per_hour(self) -> float | None:
        """All machines at EC2's price of a capacity block in December 2024, None if its page had none."""
        price = _facts()[self.instance.name].capacity_block_usd_per_hour
        return price * self.nodes if price else None


def accelerated_types() -> tuple[str, ...]:
    """Instance types that a cluster may have and the planner can model."""
    return tuple(name for name in _types_with_accelerators(cluster_instance_types()) if name in _facts())


def usd_per_hour(instance_type: str) -> float | None:
    """EC2's on-demand price of one machine, None where it is not public."""
    facts = _facts().get(instance_type)
    return facts.on_demand_usd_per_hour if facts else None


def capacity_block_types() -> tuple[str, ...]:
    """Instance types with a known price as a capacity block."""
    return tuple(name for name, facts in _facts().items() if facts.capacity_block_usd_per_hour)


def _types_with_accelerators(names: Iterable[str]) -> list[str]:
    return [name for name in names if InstanceType.of(name).accelerator_count]


class _Facts(NamedTuple):
    network_gbit_s: float
    on_demand_usd_per_hour: float | None
    capacity_block_usd_per_hour: float | None


@lru_cache(maxsize=1)
def _facts() -> dict[str, _Facts]:
    text = files(__package__).joinpath("data/instances.csv").read_text(encoding="utf-8")
    return {
        row["instance_type"]: _Facts(
            float(row["network_gbit_s"] or 10),
            *(float(row[name]) if row[name] else None for name in ("ec2_usd_per_hour", "capacity_block_usd_per_hour")),
        )
        for row in csv.DictReader(text.splitlines())
    }
