"""Rules for existing networks: pure functions of settings and AWS's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from podwright.check.account import Account
from podwright.check.findings import Finding, KeyPath, error, warning
from podwright.check.rules.addresses import interfaces_of
from podwright.check.rules.rule import nodes_by_type
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.storage import NoOpenZfs
from podwright_constructs import facts
from podwright_constructs.facts import PortRange

SUBNETS: KeyPath = ("network", "subnet_ids")
GROUP: KeyPath = ("network", "security_group_id")


def network_exists(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your VPC, a subnet or the security group is not in this region of the account, or not in the VPC.

    Asked: the VPC, the subnets and the security group, by their ids.
    Passes: each exists, and subnets and group are in the VPC.
    Fails: one does not exist, or is in another VPC (error).
    By hand: aws ec2 describe-subnets --subnet-ids subnet-…, and describe-security-groups, describe-vpcs.
    """
    network = settings.network
    if isinstance(network, CreatedNetwork):
        return
    if account.vpc(network.vpc_id) is None:
        hint = f"look in {settings.region}, in this account"
        yield error(("network", "vpc_id"), f"vpc_id: {network.vpc_id} does not exist", hint)
    if not isinstance(network, ExistingNetwork):
        return
    description_by_path: dict[KeyPath, Mapping[str, Any] | None] = {
        (*SUBNETS, index): account.subnets(network.subnet_ids).get(subnet_id)
        for index, subnet_id in enumerate(network.subnet_ids)
    }
    description_by_path[GROUP] = account.security_group(network.security_group_id)
    ids = dict(zip(description_by_path, [*network.subnet_ids, network.security_group_id], strict=True))
    for path, item in description_by_path.items():
        if item is None:
            hint = f"look in {settings.region}, in this account"
            yield error(path, f"{path[1]}: {ids[path]} does not exist", hint)
        elif item["VpcId"] != network.vpc_id:
            message = f"{path[1]}: {ids[path]} is in {item['VpcId']}, need {network.vpc_id}"
            yield error(path, message, "use one VPC for all")


def security_group_rules(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your security group lacks a rule that EFA or a file system needs.

    Asked: the rules of the group.
    Passes: members may send each other everything (all traffic from the group itself, in and out), and Lustre's
    ports, with OpenZFS the one of NFS too, are named for the group or the subnets' blocks.
    Fails: all traffic within the group is not let through (error), or a port is let through by no rule (error), or
    by the rule for all traffic alone, where FSx has looked for the number (warning).
    By hand: aws ec2 describe-security-groups --group-ids sg-…
    """
    network = settings.network
    group = account.security_group(network.security_group_id) if isinstance(network, ExistingNetwork) else None
    if not isinstance(network, ExistingNetwork) or group is None:
        return
    peers = _Peers(network.security_group_id, _blocks(account.subnets(network.subnet_ids).values()))
    inwards, outwards = group["IpPermissions"], group["IpPermissionsEgress"]
    for way, rules in (("inbound", inwards), ("outbound", outwards)):
        if not any(rule["IpProtocol"] == facts.ALL_PROTOCOLS and peers.by_group(rule) for rule in rules):
            hint = f"add an {way} rule: all traffic, {'from' if way == 'inbound' else 'to'} {peers.group_id} itself"
            yield error(GROUP, f"security_group_id: no {way} rule for all traffic within the group, as EFA needs", hint)
    for service, ports in _ports(settings):
        rules = [rule for rule in inwards if peers.admitted(rule)]
        if any(rule["IpProtocol"] == "tcp" and _within(ports, rule) for rule in rules):
            continue
        numbers = f"{ports.from_port}" if ports.from_port == ports.to_port else f"{ports.from_port}-{ports.to_port}"
        hint = f"add an inbound rule: TCP {numbers} from {peers.group_id} itself"
        if any(rule["IpProtocol"] == facts.ALL_PROTOCOLS for rule in rules):
            yield warning(
                GROUP,
                f"security_group_id: TCP {numbers} of {service} is open only through a rule for all traffic",
                hint,
            )
        else:
            yield error(GROUP, f"security_group_id: TCP {numbers} of {service} is not open", hint)


def free_addresses(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your subnets have fewer free addresses than the nodes (error) or than their EFA interfaces (warning) need.

    Asked: the free addresses of the subnets, and the nodes that the cluster has already.
    Passes: the free addresses are enough for the nodes that are to come, each EFA interface counted.
    Fails: they are not.
    By hand: aws ec2 describe-subnets --subnet-ids subnet-… --query "Subnets[].AvailableIpAddressCount"
    """
    network = settings.network
    if not isinstance(network, ExistingNetwork):
        return
    subnets = account.subnets(network.subnet_ids[:1]).values()  # nodes are in the first one
    if not subnets:  # The rule network_exists reports them.
        return
    free = sum(subnet["AvailableIpAddressCount"] for subnet in subnets)
    existing_nodes = account.nodes().get(settings.name, Counter())
    groups_in_subnet = [group for group in settings.cluster.instance_groups if not group.subnet_ids]
    coming = {name: max(0, count - existing_nodes[name]) for name, count in nodes_by_type(groups_in_subnet).items()}
    interfaces = sum(count * interfaces_of(name) for name, count in coming.items())
    if sum(coming.values()) > free:
        message = f"subnet_ids: {free} addresses are free, {sum(coming.values())} nodes are to come"
        yield error(SUBNETS, message, "give the nodes a larger subnet, or an additional one")
    elif interfaces > free:
        message = f"subnet_ids: {free} addresses are free; with EFA the nodes to come may take {interfaces}"
        yield warning(SUBNETS, message, "give the nodes a larger subnet, or efa-only interfaces")


def new_subnet_fits(settings: Settings, account: Account) -> Iterator[Finding]:
    """The block of the new subnet is outside your VPC, or a subnet of it has some of the addresses.

    Asked: the blocks of the VPC and of its subnets.
    Passes: the block is within one of the VPC's and apart from every subnet's.
    Fails: it is not (error). A subnet of exactly this block is taken for the one that was deployed.
    By hand: aws ec2 describe-subnets --filters Name=vpc-id,Values=vpc-… --query "Subnets[].CidrBlock"
    """
    network = settings.network
    vpc = account.vpc(network.vpc_id) if isinstance(network, CreatedSubnet) else None
    if not isinstance(network, CreatedSubnet) or vpc is None:
        return
    path: KeyPath = ("network", "private_subnet_cidr")
    block = IPv4Network(network.private_subnet_cidr)
    blocks = [IPv4Network(item["CidrBlock"]) for item in vpc["CidrBlockAssociationSet"]]
    if not any(block.subnet_of(outer) for outer in blocks):
        hint = "the VPC has " + " and ".join(map(str, blocks))
        yield error(path, f"private_subnet_cidr: {block} is outside {network.vpc_id}", hint)
    for subnet in account.subnets_of(network.vpc_id):
        subnet_block = IPv4Network(subnet["CidrBlock"])
        if block.overlaps(subnet_block) and block != subnet_block:
            message = f"private_subnet_cidr: {block} overlaps {subnet['SubnetId']}, {subnet_block}"
            yield error(path, message, "use a block that no subnet has")


def vpc_dns(settings: Settings, account: Account) -> Iterator[Finding]:
    """Your VPC resolves no names: neither the file system's nor those of AWS's APIs.

    Asked: the VPC's attributes enableDnsSupport and enableDnsHostnames.
    Passes: both are true.
    Fails: one is not (error).
    By hand: aws ec2 describe-vpc-attribute --vpc-id vpc-… --attribute enableDnsSupport
    """
    network = settings.network
    if isinstance(network, CreatedNetwork) or account.vpc(network.vpc_id) is None:
        return
    for name, is_on in account.has_dns(network.vpc_id).items():
        if not is_on:
            hint = f"aws ec2 modify-vpc-attribute --vpc-id {network.vpc_id} --{_hyphens(name)}"
            yield error(("network", "vpc_id"), f"vpc_id: {name} of {network.vpc_id} is off", hint)


def s3_route(settings: Settings, account: Account) -> Iterator[Finding]:
    """Nodes in your subnets do not reach S3, where their lifecycle scripts are.

    Asked: the route tables that the subnets follow, and the gateway endpoints of the VPC.
    Passes: a gateway endpoint of S3, or an active route for 0.0.0.0/0, is on each of the tables.
    Fails: a table has neither (error).
    By hand: aws ec2 describe-vpc-endpoints --filters Name=vpc-id,Values=vpc-…, and describe-route-tables.
    """
    network = settings.network
    if not isinstance(network, ExistingNetwork):
        return
    tables, with_endpoint = account.route_tables(network.vpc_id), account.s3_route_tables(network.vpc_id)
    existing_subnets = account.subnets(network.subnet_ids)
    for index, subnet_id in enumerate(network.subnet_ids):
        table = _followed(tables, subnet_id) if subnet_id in existing_subnets else None
        if table is None or table["RouteTableId"] in with_endpoint or any(map(_leads_out, table["Routes"])):
            continue
        yield error(
            (*SUBNETS, index),
            f"{subnet_id} uses {table['RouteTableId']}, which has no route to S3 or the internet",
            "add a gateway endpoint of S3 to that table, or a route through a NAT gateway",
        )


class _Peers:
    """The peers that a rule must admit: the group itself, or every address of the nodes' subnets."""

    def __init__(self, group_id: str, blocks: Sequence[IPv4Network]) -> None:
        self.group_id = group_id
        self._blocks = blocks

    def by_group(self, rule: Mapping[str, Any]) -> bool:
        return any(pair.get("GroupId") == self.group_id for pair in rule["UserIdGroupPairs"])

    def admitted(self, rule: Mapping[str, Any]) -> bool:
        ranges = [IPv4Network(item["CidrIp"]) for item in rule["IpRanges"]]
        by_block = all(any(block.subnet_of(wide) for wide in ranges) for block in self._blocks)
        return self.by_group(rule) or (bool(ranges) and by_block)


def _ports(settings: Settings) -> Iterator[tuple[str, PortRange]]:
    """Return the port ranges of the file systems, each with the service's name."""
    yield from (("Lustre", ports) for ports in facts.LUSTRE_PORTS)
    if not isinstance(settings.openzfs, NoOpenZfs):
        yield "OpenZFS", PortRange(facts.NFS_PORT, facts.NFS_PORT)


def _within(ports: PortRange, rule: Mapping[str, Any]) -> bool:
    return bool(rule["FromPort"] <= ports.from_port and ports.to_port <= rule["ToPort"])


def _blocks(subnets: Iterable[Mapping[str, Any]]) -> list[IPv4Network]:
    return [IPv4Network(subnet["CidrBlock"]) for subnet in subnets]


def _followed(tables: Sequence[Mapping[str, Any]], subnet_id: str) -> Mapping[str, Any] | None:
    """The route table of a subnet: its own, or the VPC's main one."""
    for is_explicit in (True, False):
        for table in tables:
            for item in table["Associations"]:
                if item.get("SubnetId") == subnet_id if is_explicit else item.get("Main"):
                    return table
    return None


def _leads_out(route: Mapping[str, Any]) -> bool:
    return route.get("DestinationCidrBlock") == facts.ANYWHERE and route.get("State") != "blackhole"


def _hyphens(name: str) -> str:
    """``enableDnsSupport`` as the aws CLI spells it."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
