"""Predict the time, cost and energy of a run, including failures of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from podwright import list_prices
from podwright.planning.cluster_hardware import Hardware
from podwright.planning.on_demand import on_demand, source_of
from podwright.planning.units import HOUR_S
from podwright_training.failures import Failures, failures

LUSTRE_GIB, LUSTRE_MB_S_PER_TIB = 1200, 125  # the smallest PERSISTENT_2
CONTROLLER = "ml.m5.xlarge"
# Power outside the accelerators (host, network, cooling) over the accelerators' own: DGX H100 takes 10.2 kW for 8 x
# 0.7 kW.
MACHINE_POWER_FACTOR = 1.6
AVERAGE_ACCELERATOR_LOAD = 0.85


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a run. ``usd`` is by item, and empty if the instance type has no public price."""

    hours: float
    failures: Failures
    usd: dict[str, float]
    kwh: float
    price_note: str

    @property
    def total_usd(self) -> float | None:
        """The sum of all items, or None without a public price."""
        return sum(self.usd.values()) if self.usd else None


def text_gb(tokens: float) -> float:
    """Return the size of the text of so many tokens, in 1e9 bytes: a token of English is about 4.5 bytes."""
    return tokens * 4.5 / 1e9


def cost(
    hardware: Hardware,
    *,
    seconds: float,
    parameters: float,
    usd_per_node_hour: float | None = None,
    capacity_block: bool = False,
    dataset_gb: float = 0.0,
) -> Cost:
    """Return the cost of ``seconds`` of training, plus failures, storage, network and the controller.

    ``usd_per_node_hour`` replaces EC2's on-demand price, for a training plan or a capacity block. ``capacity_block``
    uses the capacity block prices in ``data/instances.csv``.
    """
    stops = failures(hardware.gpus, parameters=parameters)
    hours = seconds / HOUR_S / stops.goodput
    types = (hardware.instance.name, CONTROLLER)
    machines = hardware.usd_per_hour
    note = f"EC2 on-demand, {source_of(hardware.region, types)}: HyperPod's own price is not public"
    if capacity_block:
        machines, note = hardware.capacity_block_usd_per_hour, "EC2 capacity block, December 2024; AWS changes it often"
    if usd_per_node_hour:
        machines, note = usd_per_node_hour * hardware.nodes, "as given"
    usd, controller = {}, on_demand(CONTROLLER, hardware.region)
    if machines:
        usd = {
            "accelerated machines": machines * hours,
            "controller": (controller.usd_per_hour if controller else 0.0) * hours,
            "Lustre": LUSTRE_GIB
            * list_prices.LUSTRE_USD_PER_GIB_MONTH[LUSTRE_MB_S_PER_TIB]
            * hours
            / list_prices.MONTH_H,
            "NAT gateway": list_prices.NAT_USD_PER_HOUR * hours + list_prices.NAT_USD_PER_GB * dataset_gb,
        }
    watts = hardware.gpus * hardware.accelerator.watts * AVERAGE_ACCELERATOR_LOAD * MACHINE_POWER_FACTOR
    return Cost(hours=hours, failures=stops, usd=usd, kwh=watts * hours / 1000, price_note=note)
