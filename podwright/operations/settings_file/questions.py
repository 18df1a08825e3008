"""The questions of ``podwright init``, in order."""

from __future__ import annotations

import os
from collections.abc import Callable

from podwright.diagram import prices
from podwright.operations.settings_file.asker import Asker, Question
from podwright.operations.settings_file.new_settings_text import CREATE, EXISTING, EXISTING_VPC, NETWORKS
from podwright.planning import units
from podwright.planning.model import Model, UnknownModelError
from podwright.settings.regions import HYPERPOD_REGIONS, zone_ids
from podwright_common.similar_names import did_you_mean, question
from podwright_constructs.catalog import cluster_instance_types, similar_types
from podwright_constructs.facts import MAX_INSTANCE_COUNT

NAME, REGION, INSTANCE_TYPE, NODES, DEADLINE = "podwright-demo", "us-west-2", "ml.g5.12xlarge", 2, "7d"


def _region_problem(value: str, _: Asker) -> str:
    return "" if value in HYPERPOD_REGIONS else f"HyperPod is in {', '.join(HYPERPOD_REGIONS)}"


def _zone_default(asker: Asker) -> str:
    return next(iter([*(asker.zones or ()), *zone_ids(asker["region"])]), "")


def _zone_problem(value: str, asker: Asker) -> str:
    known_zones = zone_ids(asker["region"])
    return "" if value in known_zones or not known_zones else f"{asker['region']} has {', '.join(known_zones)}"


def zone_note(asker: Asker) -> str:
    """Return where EC2 offers the instance type."""
    if asker.zones is None:
        return "a guess, as AWS did not answer; `podwright check --live` asks"
    zones = ", ".join(asker.zones) or f"no zone of {asker['region']}: choose another region or type"
    return f"EC2 offers {asker['instance_type']} in {zones}"


def _model_problem(value: str, _: Asker) -> str:
    try:
        return str(Model.of(value) and "") if value else ""
    except UnknownModelError:
        from podwright.planning.trainer_options import trained_names  # --help need not wait for the trainer

        names = trained_names()
        hint = did_you_mean(value, names, limit=3) or f"use one of {', '.join(names)}"
        return f"podwright-train has no such model: {hint}"


def _quantity_problem(parse: str, flag: str) -> Callable[[str, Asker], str]:
    def problem(value: str, _: Asker) -> str:
        try:
            getattr(units, parse)(value, label=flag)
        except units.UnitError as error:
            return str(error)
        return ""

    return problem


def _deadline_problem(value: str, asker: Asker) -> str:
    """Return why no cluster keeps the deadline; where the number of nodes is given, theirs is judged with the run."""
    problem = _quantity_problem("parse_duration", "--deadline")(value, asker)
    if problem or asker.options.nodes or _wrong_type(asker) or asker.offers_within(value):
        return problem
    from podwright.operations.settings_file import planned  # --help need not wait for the planner
    from podwright.planning.search import MOST_NODES

    instance_type = asker.options.instance_type
    best = planned.fastest_cluster(
        asker.model, tokens=asker["tokens"], instance_type=instance_type, region=asker["region"]
    )
    of = f" of {instance_type}" if instance_type else ""
    no = f"no cluster of up to {MOST_NODES} nodes{of} trains {asker.model} on {asker['tokens']} tokens in it"
    if best is None:
        return f"{no}: the model is too large for them"
    cluster = f"{best.hardware.nodes} x {best.hardware.instance.name}"
    took = units.format_duration(best.cost.hours * units.HOUR_S)
    return f"{no}; {cluster} take {took}: give more time or fewer tokens"


def _wrong_type(asker: Asker) -> bool:
    """Return whether a type is given that the next question refuses."""
    instance_type = asker.options.instance_type
    return bool(instance_type and _type_problem(instance_type, asker))


def _tokens_default(asker: Asker) -> str:
    return units.format_count(20 * Model.of(asker.model).active_parameters)


def _offers_note(asker: Asker) -> str:
    if not (asker.model and asker.offers):
        return ""
    from podwright.operations.settings_file import planned

    return f"{planned.table(asker.offers)}\n{asker.proposal().reason}"


def _type_default(asker: Asker) -> str:
    return asker.proposal().instance_type if asker.model and asker.offers else INSTANCE_TYPE


def _type_problem(value: str, _: Asker) -> str:
    if value in cluster_instance_types():
        return ""
    return f"HyperPod has no such type{question(similar_types(value), prefix=': ')}"


def _nodes_default(asker: Asker) -> str:
    offered = [offer.hardware for offer in (asker.offers if asker.model else ())]
    nodes = [hardware.nodes for hardware in offered if hardware.instance.name == asker["instance_type"]]
    return str(nodes[0] if nodes else NODES)


def _nodes_problem(value: str, _: Asker) -> str:
    right = value.isdecimal() and int(value) <= MAX_INSTANCE_COUNT
    return "" if right else f"need a whole number from 0 to {MAX_INSTANCE_COUNT}"


def _nodes_note(asker: Asker) -> str:
    name, region = asker["instance_type"], asker["region"]
    price, quota = prices.nodes(name, 1, 0, region=region), asker.quota(name)
    cost = f"{price:.2f} $/h a node ({prices.label(region, [name])})" if price else "EC2 publishes no price"
    allowed = f", your quota in {asker['region']} is {quota:g}" if quota is not None else ""
    return f"{asker['instance_type']}: {cost}{allowed}"


def _network_default(asker: Asker) -> str:
    if asker.options.subnet_id or asker.options.security_group_id:
        return EXISTING
    return EXISTING_VPC if asker.options.vpc_id else CREATE


def _needed(noun: str) -> Callable[[str, Asker], str]:
    return lambda value, _: "" if value else f"needed: {noun}"


def _region_default(_: Asker) -> str:
    configured_region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    return configured_region if configured_region in HYPERPOD_REGIONS else REGION


def _with_model(asker: Asker) -> bool:
    return bool(asker.model)


def _in_vpc(asker: Asker) -> bool:
    return asker["network"] == EXISTING_VPC


def _all_existing(asker: Asker) -> bool:
    return asker["network"] == EXISTING


QUESTIONS = (
    Question("name", "NAME", "name of the cluster", lambda _: NAME, _needed("letters, digits and hyphens")),
    Question("region", "REGION", "AWS region", _region_default, _region_problem),
    Question("model", "MODEL", "model to train, such as llama3_2_1b", lambda _: "", _model_problem),
    Question(
        "tokens",
        "TOKENS",
        "tokens to train it on, such as 5B",
        _tokens_default,
        _quantity_problem("parse_count", "--tokens"),
        applies=_with_model,
        goes_with="--model",
    ),
    Question(
        "deadline",
        "TIME",
        "time it may take, such as 3d",
        lambda _: DEADLINE,
        _deadline_problem,
        applies=_with_model,
        goes_with="--model",
    ),
    Question("instance_type", "TYPE", "instance type of the compute nodes", _type_default, _type_problem, _offers_note),
    Question("nodes", "N", "number of compute nodes", _nodes_default, _nodes_problem, _nodes_note),
    Question(
        "network",
        None,
        "network: create (a new VPC), existing_vpc (a new subnet in your VPC) or existing (your own subnet)",
        _network_default,
        choices=NETWORKS,
    ),
    Question(
        "zone",
        "ZONE_ID",
        "id of the availability zone with your capacity",
        _zone_default,
        _zone_problem,
        zone_note,
        applies=lambda asker: not _all_existing(asker),
        goes_with="a network whose subnet is created",
    ),
    Question(
        "vpc_id",
        "ID",
        "your VPC, vpc-…",
        lambda _: "",
        _needed("the VPC's id, vpc-…"),
        applies=lambda asker: asker["network"] != CREATE,
        goes_with="--network existing_vpc or existing",
    ),
    Question(
        "subnet_cidr",
        "CIDR",
        "addresses of the new subnet, free in the VPC",
        lambda _: "",
        _needed("addresses such as 10.0.16.0/20"),
        applies=_in_vpc,
        goes_with="--network existing_vpc",
    ),
    Question(
        "nat_gateway_id",
        "ID",
        "your NAT gateway, the subnet's way to the internet, nat-…",
        lambda _: "",
        _needed("the gateway's id"),
        applies=_in_vpc,
        goes_with="--network existing_vpc",
    ),
    Question(
        "subnet_id",
        "ID",
        "your private subnet, subnet-…",
        lambda _: "",
        _needed("the subnet's id"),
        applies=_all_existing,
        goes_with="--network existing",
    ),
    Question(
        "security_group_id",
        "ID",
        "your security group, sg-…",
        lambda _: "",
        _needed("the group's id"),
        applies=_all_existing,
        goes_with="--network existing",
    ),
)
