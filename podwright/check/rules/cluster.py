"""Rules about the cluster as a whole: names, tags, and what one section asks of another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from ipaddress import IPv4Network

from podwright.check.findings import Finding, KeyPath, error, finding_of, findings_of, warning
from podwright.settings import names
from podwright.settings.access import NoKey
from podwright.settings.arguments import arguments, group_arguments
from podwright.settings.cluster import InstanceGroup
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.regions import REGIONS, looks_like_region, zone_id_prefix
from podwright.settings.root import Settings
from podwright.settings.section import Section, UnknownValueError
from podwright.settings.storage import CreatedLustre, CreatedOpenZfs
from podwright_constructs import checks, facts
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError

# What AWS's pages and RFC 2606 write where a value of the reader's is due.
PLACEHOLDER = re.compile(r"<[^<>]*>|\bexample\.(com|net|org)\b|111122223333")


def known_region(settings: Settings) -> Iterator[Finding]:
    """The region's name has the wrong form (error), or podwright does not know it (warning: AWS adds regions)."""
    similar = get_close_matches(settings.region, REGIONS, n=3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "regions look like us-west-2"
    if not looks_like_region(settings.region):
        yield error(("region",), f"region: {settings.region!r} is not a region", hint)
    elif settings.region not in REGIONS:
        yield warning(("region",), f"region: {settings.region} is not one that podwright knows", hint)


def zone_in_region(settings: Settings) -> Iterator[Finding]:
    """The Availability Zone id belongs to another region."""
    prefix = zone_id_prefix(settings.region)
    for path, zone in _zones(settings.network):
        if not facts.AVAILABILITY_ZONE_ID_PATTERN.fullmatch(zone) or prefix is None:
            continue
        if not re.fullmatch(rf"{prefix}-az\d+", zone):
            yield error(
                path,
                f"availability_zone_id: {zone!r} is not in {settings.region}",
                f"ids of {settings.region} look like {prefix}-az1; "
                f"`aws ec2 describe-availability-zones --region {settings.region}` lists them",
            )


def _zones(network: Section) -> Iterator[tuple[KeyPath, str]]:
    """The zone ids that the file gives, each with its place; one that it gives wrongly is left out."""
    if isinstance(network, CreatedNetwork | CreatedSubnet):
        with suppress(UnknownValueError):
            yield ("network", "availability_zone_id"), network.availability_zone_id
    for index, subnet in enumerate(network.extra_private_subnets if isinstance(network, CreatedNetwork) else ()):
        with suppress(UnknownValueError):
            yield ("network", "extra_private_subnets", index, "availability_zone_id"), subnet.availability_zone_id


def cluster_name(settings: Settings) -> Iterator[Finding]:
    """The cluster's name is not one that SageMaker accepts."""
    yield from findings_of((), checks.cluster_name_problems("name", settings.name))


def tag_limits(settings: Settings) -> Iterator[Finding]:
    """Too many tags (podwright adds its own), keys that AWS keeps for itself, or text that no tag can hold."""
    for problem in checks.cluster_tags(names.cluster_tags(settings)):
        in_file = problem.path[-1] in settings.tags  # and not one that podwright adds
        yield finding_of(problem.path if in_file else ("tags",), problem)


def provisioning(settings: Settings) -> Iterator[Finding]:
    """The share of memory for checkpoints is no share, or how nodes are provisioned does not go with a group."""
    cluster = settings.cluster
    groups = [group_arguments(group) for group in cluster.instance_groups]
    problems = checks.cluster_provisioning(groups, cluster.node_provisioning, cluster.tiered_storage_percent)
    yield from findings_of(("cluster",), problems)


def placeholders(settings: Settings) -> Iterator[Finding]:
    """Something that stands in documentation for a value of yours was left as it was."""
    for path, text in _texts(settings):
        if found := PLACEHOLDER.search(text):
            yield error(path, f"{path[-1]}: {found[0]!r} is a placeholder", "write your own value")


def _texts(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Every text of the file with its place; what the file gives wrongly is left out."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            with suppress(UnknownValueError):
                yield from _texts(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def addresses(settings: Settings) -> Iterator[Finding]:
    """The private subnet has fewer addresses than the nodes (error) or than their EFA interfaces (warning) need.

    AWS keeps five addresses of each subnet: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
    """
    block = _private_block(settings.network)
    if block is None:
        return
    groups = [group for group in settings.cluster.instance_groups if not group.subnet_ids]
    free = usable_addresses(block)
    nodes = sum(group.count for group in groups)
    interfaces = sum(group.count * _addresses_per_node(group) for group in groups)
    given = f"private_subnet_cidr: {block} has {free} addresses"
    path = ("network", "private_subnet_cidr")
    if nodes > free:
        yield error(path, f"{given} for nodes, but there are {nodes}", "use a larger block within cidr")
    elif interfaces > free:
        yield warning(
            path,
            f"{given} for nodes; with EFA they may take {interfaces}",
            "use a larger block within cidr, or `network_interface: efa-only`",
        )


def _private_block(network: Section) -> str | None:
    """The block of the nodes' subnet to be created, if it can be."""
    if isinstance(network, CreatedSubnet) and not checks.private_network(**arguments(network)):
        return network.private_subnet_cidr
    if isinstance(network, CreatedNetwork) and not checks.training_network(**arguments(network, "flow_logs")):
        return network.private_subnet_cidr
    return None


def usable_addresses(cidr: str) -> int:
    """How many addresses of a subnet are free for network interfaces."""
    return IPv4Network(cidr).num_addresses - facts.RESERVED_ADDRESSES_PER_SUBNET


def openzfs_zones(settings: Settings) -> Iterator[Finding]:
    """An OpenZFS file system of two zones needs private subnets in both, the first two of the network."""
    openzfs, network = settings.openzfs, settings.network
    if not isinstance(openzfs, CreatedOpenZfs):
        return
    zones = [zone for _, zone in _zones(network)]
    subnet_count = len(network.subnet_ids) if isinstance(network, ExistingNetwork) else len(set(zones[:2]))
    problems = checks.openzfs_subnets(deployment_type=openzfs.deployment_type, subnet_count=subnet_count)
    yield from findings_of(("openzfs",), problems)
    of_two_zones = openzfs.deployment_type in facts.OPENZFS_SUBNETS
    if of_two_zones and not problems and isinstance(network, ExistingNetwork) and not network.route_table_ids:
        yield warning(
            ("openzfs", "deployment_type"),
            f"deployment_type: {openzfs.deployment_type} has its address in the main route table of {network.vpc_id}",
            "give network.route_table_ids if the subnets follow others",
        )


def unused_settings(settings: Settings) -> Iterator[Finding]:
    """A setting has no effect beside another one: whoever wrote it expects something that will not be."""
    network, openzfs = settings.network, settings.openzfs
    word = "public_subnet_cidr"
    if isinstance(network, CreatedNetwork) and network.internet == "none" and word in network.model_fields_set:
        yield error(("network", word), f"{word} has no effect with internet: none", "delete the line")
    of_two_zones = isinstance(openzfs, CreatedOpenZfs) and openzfs.deployment_type in facts.OPENZFS_SUBNETS
    if isinstance(network, ExistingNetwork) and network.route_table_ids and not of_two_zones:
        hint = "delete the lines; a created OpenZFS file system of two zones alone adds routes there"
        yield error(("network", "route_table_ids"), "route_table_ids has no effect without OpenZFS of two zones", hint)


def scratch_key(settings: Settings) -> Iterator[Finding]:
    """FSx encrypts scratch file systems with a key of its own, whatever key the file names."""
    lustre = settings.lustre
    if isinstance(settings.key, NoKey) or not isinstance(lustre, CreatedLustre):
        return
    if lustre.deployment_type == "SCRATCH_2":
        yield warning(
            ("lustre", "deployment_type"),
            "deployment_type: FSx encrypts SCRATCH_2 with a key of its own, not with yours",
            "use PERSISTENT_2 if the data must be encrypted with your key",
        )


def interfaces_of(instance_type: str) -> int:
    """Network interfaces of one node, each with an address; 1 for a type that another rule refuses."""
    try:
        return max(1, InstanceType.of(instance_type).efa_interfaces)
    except UnknownInstanceTypeError:
        return 1


def _addresses_per_node(group: InstanceGroup) -> int:
    """One for each network interface that has an address."""
    return 1 if group.network_interface == "efa-only" else interfaces_of(group.instance_type)
