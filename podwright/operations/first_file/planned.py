"""Plan the run of ``podwright init --model``: the cheapest clusters, and run.yaml. Needs podwright-training."""

from __future__ import annotations

from podwright.operations.errors import ArgumentError
from podwright.planning import launch, search, units
from podwright.planning.hardware import Hardware
from podwright.planning.model import Model
from podwright.planning.on_demand import source_of
from podwright.planning.plan import Plan, make_plan
from podwright.planning.report import offers_table
from podwright.planning.search import Offer
from podwright.planning.software import Software
from podwright.planning.trainer_options import OUR_SOFTWARE
from podwright_constructs.catalog import cluster_instance_types

OFFERS_SHOWN = 5
SEQUENCE = 2048  # tokens, as `podwright plan` takes it


def cheapest_clusters(model: str, *, tokens: str, deadline: str, instance_type: str | None, region: str) -> list[Offer]:
    """Return the cheapest clusters that train a model before the deadline, of one instance type or of all."""
    allowed = set(cluster_instance_types())
    return search.cheapest_cluster(
        Model.of(model),
        Software.named(OUR_SOFTWARE),
        tokens=units.parse_count(tokens, what="--tokens"),
        sequence=SEQUENCE,
        deadline_s=units.parse_duration(deadline, what="--deadline"),
        instance_types=[name for name in search.trainable_types() if name in allowed and instance_type in {None, name}],
        region=region,
    )


def table(offers: list[Offer]) -> str:
    """Return the first offers as a table."""
    shown = offers[:OFFERS_SHOWN]
    prices = source_of(shown[0].hardware.region, [item.hardware.instance.name for item in shown])
    return f"{offers_table(shown)}\nPrices: EC2 on-demand, {prices}"


def run_file(model: str, *, tokens: str, instance_type: str, nodes: str) -> tuple[str, str]:
    """Return a run.yaml that trains a model on the cluster, and its tokens, time and price in words.

    Raises:
        ArgumentError: the model does not fit it.
    """
    plan = make_plan(
        Model.of(model),
        Hardware(instance_type=instance_type, nodes=max(1, int(nodes))),
        sequence=SEQUENCE,
        tokens=units.parse_count(tokens, what="--tokens"),
    )
    cluster = f"{nodes} x {instance_type}"
    reasons = launch.obstacles(plan, launch.Source())
    if reasons:
        raise ArgumentError(f"{model} on {cluster}: {'; '.join(reasons)}")
    price = f"{model} on {tokens} tokens{_price(plan)}"
    about = f"# {price}, planned for {cluster}:\n# podwright submit run.yaml --nodes {nodes}\n"
    return about + launch.run_file(plan, launch.Source()), price


def _price(plan: Plan) -> str:
    if plan.cost is None:
        return ""
    usd = "" if plan.cost.total_usd is None else f" and {plan.cost.total_usd:,.0f} USD"
    return f": {units.format_duration(plan.cost.hours * 3600)}{usd}"
