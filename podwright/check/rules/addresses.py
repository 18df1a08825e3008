"""A rule about the addresses of the private subnet."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from podwright.check.findings import Finding, error, warning
from podwright.check.rules.rule import NETWORK_BLOCKS, reads
from podwright.settings.arguments import arguments
from podwright.settings.cluster import InstanceGroupSection
from podwright.settings.network import CreatedNetwork, CreatedSubnet
from podwright.settings.root import Settings
from podwright.settings.section import Section
from podwright.settings.storage import CreatedLustre, CreatedOpenZfs
from podwright_constructs import checks, facts
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError


@reads(
    *NETWORK_BLOCKS,
    "network.endpoints",
    "lustre.source",
    "openzfs.source",
    "cluster.instance_groups.instance_type",
    "cluster.instance_groups.count",
    "cluster.instance_groups.network_interface",
    "cluster.instance_groups.subnet_ids",
)
def addresses(settings: Settings) -> Iterator[Finding]:
    """The private subnet has too few addresses for nodes (error) or for their EFA interfaces (warning).

    AWS keeps five addresses of each subnet: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
    """
    block = _private_block(settings.network)
    if block is None:
        return
    groups = [group for group in settings.cluster.instance_groups if not group.subnet_ids]
    free = usable_addresses(block)
    free -= _addresses_of_services(settings)
    nodes = sum(group.count for group in groups)
    interfaces = sum(group.count * _addresses_per_node(group) for group in groups)
    message = f"private_subnet_cidr: {block} leaves {max(free, 0):,} addresses for nodes"
    path = ("network", "private_subnet_cidr")
    if nodes > free:
        yield error(path, f"{message}; the cluster has {nodes:,}", "use a larger block within cidr")
    elif interfaces > free:
        yield warning(
            path,
            f"{message}; their EFA interfaces may need {interfaces:,}",
            "use a larger block within cidr, or `network_interface: efa-only`",
        )


def _addresses_of_services(settings: Settings) -> int:
    """Return the least number of addresses that file systems and endpoints in the subnet take."""
    network, openzfs = settings.network, settings.openzfs
    services = checks.endpoint_services(network.endpoints) if isinstance(network, CreatedNetwork) else ()
    return isinstance(settings.lustre, CreatedLustre) + isinstance(openzfs, CreatedOpenZfs) + len(services)


def _private_block(network: Section) -> str | None:
    """Return the block of the nodes' subnet if it is created and valid."""
    if isinstance(network, CreatedSubnet) and not checks.private_network(**arguments(network)):
        return network.private_subnet_cidr
    if isinstance(network, CreatedNetwork) and not checks.training_network(**arguments(network, "flow_logs")):
        return network.private_subnet_cidr
    return None


def usable_addresses(cidr: str) -> int:
    """Return the number of addresses of a subnet that AWS leaves free."""
    return IPv4Network(cidr).num_addresses - facts.RESERVED_ADDRESSES_PER_SUBNET


def interfaces_of(instance_type: str) -> int:
    """Return the network interfaces of a node, each with an address; 1 for a type that another rule refuses."""
    try:
        return max(1, InstanceType.of(instance_type).efa_interfaces)
    except UnknownInstanceTypeError:
        return 1


def _addresses_per_node(group: InstanceGroupSection) -> int:
    """Count the network interfaces that have an address."""
    return 1 if group.network_interface == "efa-only" else interfaces_of(group.instance_type)
