"""Check the arguments of a network against EC2's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import chain, combinations
from typing import Protocol

from podwright_constructs import facts
from podwright_constructs.checks.words import (
    block_problems,
    choice,
    counted,
    duplicate_problems,
    is_reference,
    matches,
    one_of,
    resource_id_problems,
)
from podwright_constructs.problems import Path, Problem, is_token

Blocks = dict[Path, str]
INTERNET = ("nat", "none")
STANDARD = "standard"


class Subnet(Protocol):
    """The attributes of an extra subnet that the checks read."""

    @property
    def availability_zone_id(self) -> str:
        """Id of its Availability Zone."""

    @property
    def cidr(self) -> str:
        """Its IPv4 block."""


def training_network(
    *,
    availability_zone_id: str,
    cidr: str,
    public_subnet_cidr: str,
    private_subnet_cidr: str,
    secondary_cidrs: Sequence[str] = (),
    extra_private_subnets: Sequence[Subnet] = (),
    internet: str = "nat",
    endpoints: Sequence[str] = (),
) -> list[Problem]:
    """Check a new network: zones, blocks, that the subnets are within the VPC and apart, endpoints."""
    extra = {("extra_private_subnets", index): subnet for index, subnet in enumerate(extra_private_subnets)}
    zones: Blocks = {("availability_zone_id",): availability_zone_id}
    zones |= {(*path, "availability_zone_id"): subnet.availability_zone_id for path, subnet in extra.items()}
    vpc: Blocks = {("cidr",): cidr}
    vpc |= {("secondary_cidrs", index): block for index, block in enumerate(secondary_cidrs)}
    subnets: Blocks = {} if internet == "none" else {("public_subnet_cidr",): public_subnet_cidr}
    subnets |= {("private_subnet_cidr",): private_subnet_cidr}
    subnets |= {(*path, "cidr"): subnet.cidr for path, subnet in extra.items()}
    malformed = list(chain.from_iterable(block_problems(path, block) for path, block in (vpc | subnets).items()))
    return [
        *chain.from_iterable(_zone(path, zone) for path, zone in zones.items()),
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
    """Check a new private subnet in an existing VPC."""
    problems = [
        *resource_id_problems(("vpc_id",), vpc_id, "vpc"),
        *_zone(("availability_zone_id",), availability_zone_id),
        *block_problems(("private_subnet_cidr",), private_subnet_cidr),
        *(resource_id_problems(("nat_gateway_id",), nat_gateway_id, "nat") if nat_gateway_id else ()),
        *(resource_id_problems(("route_table_id",), route_table_id, "rtb") if route_table_id else ()),
    ]
    if nat_gateway_id and route_table_id:
        hint = "With a NAT gateway the subnet gets a route table of its own."
        problems.append(Problem("conflict", ("nat_gateway_id",), "route_table_id too", "one of the two", hint))
    if not nat_gateway_id and not route_table_id:
        need = "the id of your own NAT gateway, or route_table_id instead"
        hint = "Without a route out of the VPC, nodes reach neither packages nor AWS's APIs."
        problems.append(Problem("missing", ("nat_gateway_id",), "no value", need, hint))
    return problems


def existing_network(
    *, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str, route_table_ids: Sequence[str] = ()
) -> list[Problem]:
    """Check the ids of an existing network."""
    problems = [
        *resource_id_problems(("vpc_id",), vpc_id, "vpc"),
        *resource_id_problems(("security_group_id",), security_group_id, "sg"),
    ]
    if not 1 <= len(subnet_ids) <= facts.MAX_SUBNETS:
        value = counted(len(subnet_ids), "subnet")
        problems.append(Problem("size", ("subnet_ids",), value, f"1 to {facts.MAX_SUBNETS}"))
    for index, subnet_id in enumerate(subnet_ids):
        problems += resource_id_problems(("subnet_ids", index), subnet_id, "subnet")
    for index, route_table_id in enumerate(route_table_ids):
        problems += resource_id_problems(("route_table_ids", index), route_table_id, "rtb")
    problems += duplicate_problems("subnet_ids", subnet_ids)
    problems += duplicate_problems("route_table_ids", route_table_ids)
    return problems


def network_lookup(
    *,
    vpc_tags: Mapping[str, str],
    subnet_tags: Mapping[str, str],
    security_group_tags: Mapping[str, str],
    availability_zone_ids: Sequence[str],
) -> list[Problem]:
    """Check by what a network is found."""
    searched = {"vpc_tags": vpc_tags, "subnet_tags": subnet_tags, "security_group_tags": security_group_tags}
    hint = "Without one Terraform would take whatever there is one of."
    problems = [
        Problem("size", (argument,), "no tag", "at least one", hint) for argument, tags in searched.items() if not tags
    ]
    if not 1 <= len(availability_zone_ids) <= facts.MAX_SUBNETS:
        value = counted(len(availability_zone_ids), "zone")
        problems.append(Problem("size", ("availability_zone_ids",), value, f"1 to {facts.MAX_SUBNETS}"))
    for index, zone_id in enumerate(availability_zone_ids):
        problems += _zone(("availability_zone_ids", index), zone_id)
    return [*problems, *duplicate_problems("availability_zone_ids", availability_zone_ids)]


def connections(*, security_group_id: str) -> list[Problem]:
    """Check the security group whose rules these are."""
    return resource_id_problems(("security_group_id",), security_group_id, "sg")


def connection(
    *, security_group_id: str | None, cidr: str | None, ports: tuple[int, int] | int | None
) -> list[Problem]:
    """Check a rule of a security group: the others, and the ports."""
    problems = []
    if (security_group_id is None) == (cidr is None):
        value = "neither" if cidr is None else "both"
        problems.append(Problem("conflict", ("cidr",), value, "one of the two, cidr or security_group_id"))
    elif security_group_id is not None:
        problems += resource_id_problems(("security_group_id",), security_group_id, "sg")
    elif cidr is not None and not is_reference(cidr):
        problems += _others_block(cidr)
    return [*problems, *_ports_problems(ports)]


def _ports_problems(ports: object) -> list[Problem]:
    need = f"a port from 0 to {facts.MAX_PORT}, or a range that ends behind its beginning"
    span = ports if isinstance(ports, tuple) else (0, 0) if ports is None else (ports, ports)
    if len(span) != 2 or not all(type(port) is int or (type(port) is float and is_token(port)) for port in span):  # noqa: PLR2004 -- begin and end
        return [Problem("malformed", ("ports",), ports, need)]
    if any(is_token(port) for port in span):
        return []
    from_port, to_port = span
    if not 0 <= from_port <= to_port <= facts.MAX_PORT:
        return [Problem("range", ("ports",), f"{from_port} to {to_port}", need)]
    return []


def _others_block(cidr: str) -> list[Problem]:
    """Check a block of the others: any size, 0.0.0.0/0 and single addresses too."""
    try:
        IPv4Network(cidr)
    except ValueError as error:
        return [Problem("malformed", ("cidr",), cidr, "an IPv4 block like 10.1.0.0/16", f"{error}.")]
    return []


def endpoint_services(words: Sequence[str]) -> tuple[str, ...]:
    """Return the services that a list names, each once, with ``standard`` expanded."""
    return tuple(
        dict.fromkeys(chain.from_iterable(facts.STANDARD_ENDPOINTS if word == STANDARD else (word,) for word in words))
    )


def interface_endpoints(services: Sequence[str], argument: str = "services") -> list[Problem]:
    """Check the names of the services to create endpoints for."""
    choices = (STANDARD, *facts.ENDPOINTS)
    return [
        problem for index, service in enumerate(services) for problem in choice((argument, index), service, choices)
    ]


def _zone(path: Path, zone: str) -> list[Problem]:
    hint = "A name like us-west-2a stands for a different zone in every account; an id does not."
    return matches(path, zone, facts.AVAILABILITY_ZONE_ID_PATTERN, "a zone id like usw2-az1", hint)


def _secondary_blocks(vpc: Blocks) -> Iterator[Problem]:
    """Check that secondary blocks do not overlap the first or each other, and that AWS allows their ranges with it."""
    blocks = _known(vpc)
    if len(vpc) > facts.MAX_VPC_BLOCKS:
        value, need = f"{len(vpc) - 1} blocks", f"at most {facts.MAX_VPC_BLOCKS - 1} beside cidr"
        yield Problem("size", ("secondary_cidrs",), value, need)
    for (_, earlier), (path, later) in combinations(blocks.items(), 2):
        if earlier.overlaps(later):
            yield Problem("overlap", path, later, f"a block that does not overlap {earlier}")
    if ("cidr",) not in blocks:
        return
    primary = blocks.pop(("cidr",))
    refused = [facts.AWS_OWN_RANGE, *(block for block in facts.PRIVATE_RANGES if not _inside(primary, block))]
    refused += [
        block for primary_range, block in facts.REFUSED_RANGES_BESIDE.items() if _inside(primary, primary_range)
    ]
    for path, block in blocks.items():
        if any(_inside(block, later) for later in refused):
            hint = "100.64.0.0/10 is allowed in every VPC."
            yield Problem("conflict", path, block, f"a block outside {one_of(refused)} beside {primary}", hint)


def _layout(vpc: Blocks, subnets: Blocks) -> Iterator[Problem]:
    """Check that each subnet is within a block of the VPC, and that no two overlap."""
    blocks = _known(vpc)
    if len(blocks) == len(vpc):
        names = "cidr" if len(vpc) == 1 else "cidr or secondary_cidrs"
        for path, subnet in _known(subnets).items():
            if not any(subnet.subnet_of(block) for block in blocks.values()):
                yield Problem("range", path, subnet, f"a block within {names}, {one_of(list(vpc.values()))}")
    for (_, earlier), (path, later) in combinations(_known(subnets).items(), 2):
        if earlier.overlaps(later):
            yield Problem("overlap", path, later, f"a block that does not overlap {earlier}")


def _endpoints(internet: str, endpoints: Sequence[str]) -> Iterator[Problem]:
    yield from interface_endpoints(endpoints, "endpoints")
    yield from choice("internet", internet, INTERNET)
    missing = [service for service in facts.STANDARD_ENDPOINTS if service not in endpoint_services(endpoints)]
    if internet == "none" and missing:
        value = counted(len(endpoints), "service")
        hint = f"Without internet, nodes reach AWS's APIs only through endpoints; missing: {', '.join(missing)}."
        yield Problem("conflict", ("endpoints",), value, f"at least [{STANDARD}] with internet: none", hint)


def _known(blocks: Blocks) -> dict[Path, IPv4Network]:
    return {path: IPv4Network(block) for path, block in blocks.items() if not is_reference(block)}


def _inside(block: IPv4Network, outer: str) -> bool:
    return block.subnet_of(IPv4Network(outer))
