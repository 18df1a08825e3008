"""What EC2 would refuse of a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import chain, combinations
from typing import Protocol

from podwright_constructs import facts
from podwright_constructs.checks.words import is_reference, matches, one_of
from podwright_constructs.problems import Problem

INTERNET = ("nat", "none")
STANDARD = "standard"


class SubnetPlace(Protocol):
    """What the checks look at in a further subnet."""

    @property
    def availability_zone_id(self) -> str:
        """Its zone."""

    @property
    def cidr(self) -> str:
        """Its block."""


def training_network(
    *,
    availability_zone_id: str,
    cidr: str,
    public_subnet_cidr: str,
    private_subnet_cidr: str,
    secondary_cidrs: Sequence[str] = (),
    extra_private_subnets: Sequence[SubnetPlace] = (),
    internet: str = "nat",
    endpoints: Sequence[str] = (),
) -> list[Problem]:
    """Problems of a network to be created: zones, blocks, how the blocks lie in each other, endpoints."""
    extra = {f"extra_private_subnets[{index}]": subnet for index, subnet in enumerate(extra_private_subnets)}
    zones = {"availability_zone_id": availability_zone_id}
    zones |= {f"{where}.availability_zone_id": subnet.availability_zone_id for where, subnet in extra.items()}
    vpc = {"cidr": cidr, **{f"secondary_cidrs[{index}]": block for index, block in enumerate(secondary_cidrs)}}
    subnets = {} if internet == "none" else {"public_subnet_cidr": public_subnet_cidr}
    subnets |= {"private_subnet_cidr": private_subnet_cidr}
    subnets |= {f"{where}.cidr": subnet.cidr for where, subnet in extra.items()}
    malformed = list(chain.from_iterable(_cidr(argument, block) for argument, block in (vpc | subnets).items()))
    return [
        *chain.from_iterable(_zone(argument, zone) for argument, zone in zones.items()),
        *(malformed or [*_secondary_blocks(vpc), *_layout(vpc, subnets)]),
        *_endpoints(internet, endpoints),
    ]


def private_network(
    *,
    vpc_id: str,
    availability_zone_id: str,
    private_subnet_cidr: str,
    nat_gateway_id: str | None = None,
    route_table_id: str | None = None,
) -> list[Problem]:
    """Problems of a new private subnet in a VPC that exists."""
    problems = [
        *_id("vpc_id", vpc_id, "vpc"),
        *_zone("availability_zone_id", availability_zone_id),
        *_cidr("private_subnet_cidr", private_subnet_cidr),
        *(_id("nat_gateway_id", nat_gateway_id, "nat") if nat_gateway_id else ()),
        *(_id("route_table_id", route_table_id, "rtb") if route_table_id else ()),
    ]
    if nat_gateway_id and route_table_id:
        hint = "With a NAT gateway the subnet gets a route table of its own."
        problems.append(Problem("nat_gateway_id", "beside route_table_id", "one of the two", hint))
    if not nat_gateway_id and not route_table_id:
        allowed = "the id of a NAT gateway of yours, or route_table_id instead"
        hint = "Without a way out nodes get neither packages nor AWS's APIs."
        problems.append(Problem("nat_gateway_id", "left out", allowed, hint))
    return problems


def existing_network(
    *, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str, route_table_ids: Sequence[str] = ()
) -> list[Problem]:
    """Problems of the ids of a network that exists."""
    problems = [*_id("vpc_id", vpc_id, "vpc"), *_id("security_group_id", security_group_id, "sg")]
    if not 1 <= len(subnet_ids) <= facts.MAX_SUBNETS:
        problems.append(Problem("subnet_ids", f"{len(subnet_ids)} subnets", f"1 to {facts.MAX_SUBNETS} subnets"))
    for index, subnet_id in enumerate(subnet_ids):
        problems += _id(f"subnet_ids[{index}]", subnet_id, "subnet")
    for index, route_table_id in enumerate(route_table_ids):
        problems += _id(f"route_table_ids[{index}]", route_table_id, "rtb")
    return problems


def endpoint_services(words: Sequence[str]) -> tuple[str, ...]:
    """The services that a list names, ``standard`` written out, each once."""
    return tuple(
        dict.fromkeys(chain.from_iterable(facts.STANDARD_ENDPOINTS if word == STANDARD else (word,) for word in words))
    )


def interface_endpoints(services: Sequence[str], argument: str = "services") -> list[Problem]:
    """Problems of the services that endpoints are asked for."""
    return [
        Problem(f"{argument}[{index}]", service, one_of((STANDARD, *facts.ENDPOINTS)))
        for index, service in enumerate(services)
        if service not in {STANDARD, *facts.ENDPOINTS}
    ]


def _id(argument: str, value: str, prefix: str) -> list[Problem]:
    return matches(argument, value, re.compile(rf"{prefix}-\w+"), f"an id like {prefix}-0123456789abcdef0")


def _zone(argument: str, zone: str) -> list[Problem]:
    return matches(
        argument,
        zone,
        facts.AVAILABILITY_ZONE_ID_PATTERN,
        "the id of a zone, like usw2-az1",
        "Names like us-west-2a mean another place in every account; ids do not.",
    )


def _cidr(argument: str, block: str) -> list[Problem]:
    if is_reference(block):
        return []
    shortest, longest = facts.MIN_CIDR_PREFIX_LENGTH, facts.MAX_CIDR_PREFIX_LENGTH
    allowed = f"an IPv4 block of {facts.VPC_PREFIX_TEXT}, like 10.0.0.0/{shortest}"
    try:
        network = IPv4Network(block)
    except ValueError as error:
        return [Problem(argument, block, allowed, f"Python's reading of it: {error}.")]
    return [] if shortest <= network.prefixlen <= longest else [Problem(argument, block, allowed)]


def _secondary_blocks(vpc: Mapping[str, str]) -> Iterator[Problem]:
    """The VPC's further blocks: apart from the first and from each other, and of a range that goes with it."""
    known = _known(vpc)
    for (_, one), (argument, other) in combinations(known.items(), 2):
        if one.overlaps(other):
            yield Problem(argument, str(other), f"a block that does not overlap {one}")
    if "cidr" not in known:
        return
    first = known.pop("cidr")
    refused = [facts.AWS_OWN_RANGE, *(block for block in facts.PRIVATE_RANGES if not _inside(first, block))]
    if not any(_inside(first, block) for block in facts.PRIVATE_RANGES):
        refused = [facts.AWS_OWN_RANGE]
    for argument, block in known.items():
        if any(_inside(block, other) for other in refused):
            hint = "100.64.0.0/10 goes with every VPC."
            yield Problem(argument, str(block), f"a block outside {one_of(refused)} beside {first}", hint)


def _layout(vpc: Mapping[str, str], subnets: Mapping[str, str]) -> Iterator[Problem]:
    """Each subnet lies in a block of the VPC, and no two overlap."""
    blocks = _known(vpc)
    if len(blocks) == len(vpc):
        names = "cidr" if len(vpc) == 1 else "cidr or secondary_cidrs"
        for argument, subnet in _known(subnets).items():
            if not any(subnet.subnet_of(block) for block in blocks.values()):
                yield Problem(argument, str(subnet), f"a block inside {names}, {one_of(list(vpc.values()))}")
    for (_, one), (argument, other) in combinations(_known(subnets).items(), 2):
        if one.overlaps(other):
            yield Problem(argument, str(other), f"a block that does not overlap {one}")


def _endpoints(internet: str, endpoints: Sequence[str]) -> Iterator[Problem]:
    yield from interface_endpoints(endpoints, "endpoints")
    if internet not in INTERNET:
        yield Problem("internet", internet, one_of(INTERNET))
    missing = [service for service in facts.STANDARD_ENDPOINTS if service not in endpoint_services(endpoints)]
    if internet == "none" and missing:
        hint = f"Without internet nodes reach AWS's APIs through endpoints alone; missing: {', '.join(missing)}."
        yield Problem("endpoints", f"{len(endpoints)} services", f"[{STANDARD}] and more with internet: none", hint)


def _known(blocks: Mapping[str, str]) -> dict[str, IPv4Network]:
    return {argument: IPv4Network(block) for argument, block in blocks.items() if not is_reference(block)}


def _inside(block: IPv4Network, other: str) -> bool:
    return block.subnet_of(IPv4Network(other))
