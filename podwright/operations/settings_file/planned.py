"""Plan the run of ``podwright init --model``: the cheapest clusters, and run.yaml. Needs podwright-training."""

from __future__ import annotations

from typing import Any, NamedTuple

from podwright.errors import ArgumentError
from podwright.planning import launch, search, units
from podwright.planning.cluster_hardware import Hardware
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright.planning.on_demand import source_of
from podwright.planning.plan_text import offers_table, to_spare
from podwright.planning.run_plan import Plan, make_plan
from podwright.planning.search import Offer
from podwright.planning.trainer_options import OUR_SOFTWARE
from podwright.planning.trainer_software import Software
from podwright_constructs.catalog import cluster_instance_types

OFFERS_SHOWN = 5
SEQUENCE = 2048  # tokens, as `podwright plan` takes it


def cheapest_clusters(model: str, *, tokens: str, deadline: str, instance_type: str | None, region: str) -> list[Offer]:
    """Return the cheapest clusters that train a model before the deadline, of one instance type or of all."""
    return search.cheapest_cluster(
        Model.of(model),
        Software.named(OUR_SOFTWARE),
        tokens=units.parse_count(tokens, label="--tokens"),
        sequence=SEQUENCE,
        deadline_s=units.parse_duration(deadline, label="--deadline"),
        instance_types=_types(instance_type),
        region=region,
    )


def fastest_cluster(model: str, *, tokens: str, instance_type: str | None, region: str) -> Offer | None:
    """Return the fastest cluster of at most 64 nodes, of one instance type or of all; None if the model fits none."""
    offers = [
        search.offer(
            Hardware(instance_type=name, nodes=search.MOST_NODES, region=region),
            Model.of(model),
            Software.named(OUR_SOFTWARE),
            tokens=units.parse_count(tokens, label="--tokens"),
            sequence=SEQUENCE,
        )
        for name in _types(instance_type)
    ]
    return min((item for item in offers if item), key=lambda item: item.cost.hours, default=None)


def _types(instance_type: str | None) -> list[str]:
    allowed = set(cluster_instance_types())
    return [name for name in search.trainable_types() if name in allowed and instance_type in {None, name}]


def table(offers: list[Offer]) -> str:
    """Return the first offers as a table."""
    shown = offers[:OFFERS_SHOWN]
    prices = source_of(shown[0].hardware.region, [item.hardware.instance.name for item in shown])
    chosen = search.proposed(offers)
    if chosen not in shown:
        shown.append(chosen)
    return f"{offers_table(shown)}\nPrices: EC2 on-demand, {prices}. Memory: {to_spare()}"


def reason(offers: list[Offer], *, tokens: str, deadline: str) -> str:
    """Return why the cluster that is proposed was chosen, in one sentence."""
    chosen, cheapest = search.proposed(offers), offers[0]
    within = f"{chosen.model.name} on {tokens} tokens takes {_in_words(chosen)}, within {deadline}"
    if chosen is cheapest:
        return f"{within}: the cheapest of {len(offers)} instance types that do"
    cheapest_nodes = f"{cheapest.hardware.nodes} x {cheapest.hardware.instance.name}"
    hourly = f"{chosen.hardware.usd_per_hour:,.2f} $/h instead of {cheapest.hardware.usd_per_hour:,.2f}"
    return (
        f"{within}. {cheapest_nodes} would take {_in_words(cheapest)}: within the planner's error such totals "
        f"are alike, and these nodes cost {hourly} while they boot, wait or repeat steps"
    )


def _in_words(item: Offer) -> str:
    return f"{units.format_duration(item.cost.hours * units.HOUR_S)} and {item.cost.total_usd or 0:,.0f} USD"


class Run(NamedTuple):
    """A run.yaml that trains a model on a cluster, its tokens, time and price in words, and its time."""

    text: str
    price: str
    seconds: float


def run(model: str, *, tokens: str, instance_type: str, nodes: str, region: str) -> Run:
    """Plan a run, in the layout that ``cheapest_clusters`` counts with.

    Raises:
        ArgumentError: the model does not fit the cluster, or only if the planner is exactly right.
    """
    hardware = Hardware(instance_type=instance_type, nodes=max(1, int(nodes)), region=region)
    token_count = units.parse_count(tokens, label="--tokens")
    offer = search.offer(hardware, Model.of(model), Software.named(OUR_SOFTWARE), tokens=token_count, sequence=SEQUENCE)
    chosen = _chosen(offer.candidate.layout) if offer else {}
    plan = make_plan(Model.of(model), hardware, sequence=SEQUENCE, tokens=token_count, **chosen)
    cluster = f"{nodes} x {instance_type}"
    reasons = launch.obstacles(plan, launch.LaunchInputs())
    if not (reasons or plan.memory.fits_surely):
        reasons = [f"{plan.tight()}: {plan.remedy()}"]
    if reasons:
        raise ArgumentError(f"{model} on {cluster}: {'; '.join(reasons)}")
    price = f"{model} on {tokens} tokens{_price(plan)}"
    about = f"# {price}, planned for {cluster}:\n# podwright submit run.yaml --nodes {nodes}\n"
    seconds = plan.cost.hours * units.HOUR_S if plan.cost else 0.0
    return Run(about + launch.run_file(plan, launch.LaunchInputs()), price, seconds)


def _chosen(layout: Layout) -> dict[str, Any]:
    """Return the arguments of ``make_plan`` for a layout of FSDP or HSDP."""
    return {
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches,
        "recompute": layout.recompute,
        "offload_activations": layout.offload_activations,
        "hybrid": bool(layout.shards),
    }


def _price(plan: Plan) -> str:
    if plan.cost is None:
        return ""
    usd = "" if plan.cost.total_usd is None else f" and {plan.cost.total_usd:,.0f} USD"
    return f": {units.format_duration(plan.cost.hours * 3600)}{usd}"
