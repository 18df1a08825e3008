"""EC2's on-demand prices of instance types by region, in USD for an hour of one node.

HyperPod's own prices (of ``ml.`` types) are not public; EC2's are of the type without ``ml.``, on Linux. Those of
us-east-1 are in ``data/instances.csv``. ``data/regional_prices.csv`` has one size of a family for each other region,
from SkyPilot's catalog of EC2's price list: commit 00148f2 of https://github.com/skypilot-org/skypilot-catalog, made
after November 2025 and read in November 2026. Sizes of a family cost in every region the same multiple of each other,
to five digits (g5.2xlarge and g5.48xlarge, p5.4xlarge and p5.48xlarge, g6e.12xlarge and g6e.16xlarge were compared).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

BASE_REGION = "us-east-1"  # EC2 publishes each type's price for this region, if for any.


class OnDemand(NamedTuple):
    """The price of one node, and the region that has it."""

    usd_per_hour: float
    region: str


def on_demand(instance_type: str, region: str) -> OnDemand | None:
    """Return EC2's price in ``region``, or us-east-1's if it is the only one known; None if EC2 publishes no price."""
    base = _base_prices().get(instance_type)
    if base is None:
        return None
    ratio = _ratios().get((_family(instance_type), region))
    return OnDemand(base, BASE_REGION) if ratio is None else OnDemand(base * ratio, region)


def source_of(region: str, instance_types: Iterable[str]) -> str:
    """Return text with the region that the types' prices come from; types priced in us-east-1 alone are named."""
    region_by_type = {name: price.region for name in instance_types if (price := on_demand(name, region))}
    elsewhere = sorted(name for name, price_region in region_by_type.items() if price_region != region)
    if not region_by_type or region == BASE_REGION:
        return BASE_REGION
    if not elsewhere:
        return region
    if len(elsewhere) == len(region_by_type):
        return f"{BASE_REGION}; {region}'s are not known"
    return f"{region}; {', '.join(elsewhere)} as in {BASE_REGION}"


def rows(name: str) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table in ``data/``."""
    text = files(__package__).joinpath(f"data/{name}").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


@lru_cache(maxsize=1)
def _base_prices() -> dict[str, float]:
    priced_rows = (row for row in rows("instances.csv") if row["ec2_usd_per_hour"])
    return {row["instance_type"]: float(row["ec2_usd_per_hour"]) for row in priced_rows}


@lru_cache(maxsize=1)
def _ratios() -> dict[tuple[str, str], float]:
    """Return a family's price in a region, as a multiple of its price in us-east-1."""
    base = _base_prices()
    return {
        (_family(row["instance_type"]), row["region"]): float(row["ec2_usd_per_hour"]) / base[row["instance_type"]]
        for row in rows("regional_prices.csv")
    }


def _family(instance_type: str) -> str:
    return instance_type.rpartition(".")[0]
