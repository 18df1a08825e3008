"""The content of a diagram: boxes, their parts, and the connections with their ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from podwright.diagram import prices
from podwright.diagram.stack_resources import Resource, decoded
from podwright.resource_types import resource_type
from podwright.settings.access import ExistingKey, ExistingRole
from podwright.settings.network import CreatedSubnet, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.storage import ExistingBucket, ExistingLustre, ExistingOpenZfs, NoOpenZfs
from podwright_constructs import facts

NODES = "nodes"
ACCOUNT = "account"
NETWORK = "network"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One resource: ``usd_per_hour`` is 0 where only use is paid and None where the price is not known."""

    kind: str
    name: str
    detail: str = ""
    usd_per_hour: float | None = 0.0
    is_existing: bool = False
    address: str = ""


@dataclass(frozen=True)
class Box:
    """A box with parts in it: a subnet, the VPC around the subnets, or the account around the VPC."""

    id: str
    title: str
    is_existing: bool = False
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Flow:
    """A connection from source to target, each the name of a part or a box."""

    source: str
    target: str
    label: str


@dataclass(frozen=True)
class Diagram:
    """All resources: the VPC's own parts, its subnets, and the account around it."""

    name: str
    network: Box
    subnets: tuple[Box, ...]
    account: Box
    flows: tuple[Flow, ...]
    price_label: str  # The basis of the sum, such as on-demand prices of a region.

    @property
    def boxes(self) -> tuple[Box, ...]:
        """All boxes, from the inside out."""
        return (*self.subnets, self.network, self.account)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order of the boxes."""
        return tuple(part for box in self.boxes for part in box.parts)

    @property
    def ways(self) -> dict[str, list[str]]:
        """The connections from the compute nodes to each other target."""
        ways: dict[str, list[str]] = {}
        for flow in self.flows:
            if flow.target != NODES:
                ways.setdefault(flow.target, []).append(flow.label)
        return ways

    @property
    def usd_per_hour(self) -> float:
        """The sum of the known prices."""
        return sum(part.usd_per_hour or 0.0 for part in self.parts)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The parts that cost by the hour and are not in the sum."""
        return tuple(f"{part.kind} {part.name}" for part in self.parts if part.usd_per_hour is None)


def diagram(settings: Settings, resources: Sequence[Resource]) -> Diagram:
    """Return the diagram of a settings file's cluster."""
    return _Drawing(settings, resources).finished()


class _Drawing:
    """Put every resource into its box, and existing ones beside them."""

    def __init__(self, settings: Settings, resources: Sequence[Resource]) -> None:
        self._settings = settings
        self._resources = resources
        self._network = self._make_network()
        self._subnets = {box.id: box for box in self._make_subnets()}
        self._account = Box(ACCOUNT, f"Account, {settings.region}")

    def finished(self) -> Diagram:
        for resource in self._resources:
            if resource_type(resource.type).in_diagram and not _is_interface(resource):
                self._box_of(resource).parts.append(_part(resource))
        self._network.parts.extend(self._interface_endpoints())
        self._nodes_box().parts[:0] = self._groups()
        self._add_existing()
        self._count_objects()
        nodes = self._nodes_box()
        subnets = (nodes, *(box for box in self._subnets.values() if box is not nodes))
        types = [group.instance_type for group in self._settings.cluster.instance_groups]
        based = prices.label(self._settings.region, types)
        return Diagram(self._settings.name, self._network, subnets, self._account, tuple(self._flows()), based)

    def _of(self, *types: str) -> list[Resource]:
        return [resource for resource in self._resources if resource.type in types]

    def _make_network(self) -> Box:
        for vpc in self._of("aws_vpc"):
            more = [str(item.arguments["cidr_block"]) for item in self._of("aws_vpc_ipv4_cidr_block_association")]
            return Box(NETWORK, f"VPC {' + '.join([vpc.arguments['cidr_block'], *more])}")
        network = self._settings.network
        vpc_id = network.vpc_id if isinstance(network, ExistingNetwork | CreatedSubnet) else ""
        return Box(NETWORK, f"VPC {vpc_id}", is_existing=True)

    def _make_subnets(self) -> Iterator[Box]:
        for subnet in self._of("aws_subnet"):
            arguments = subnet.arguments
            zone = arguments.get("availability_zone_id") or arguments.get("availability_zone", "")
            name = arguments.get("tags", {}).get("Name", subnet.path)
            yield Box(subnet.address, f"Subnet {name}, {arguments['cidr_block']}, {zone}")
        if isinstance(self._settings.network, ExistingNetwork):
            for subnet_id in self._settings.network.subnet_ids:
                yield Box(subnet_id, f"Subnet {subnet_id}", is_existing=True)

    def _box_of(self, resource: Resource) -> Box:
        for argument in ("subnet_id", "subnet_ids", "db_subnet_group_name"):
            for address in (*resource.refers_to(argument), *_texts(resource.arguments.get(argument))):
                if address in self._subnets:
                    return self._subnets[address]
                if group := next((item for item in self._of("aws_db_subnet_group") if item.address == address), None):
                    return self._box_of(group)
        return self._network if "vpc_id" in resource.arguments else self._account

    def _nodes_box(self) -> Box:
        """The first private subnet."""
        private = [item for key, item in self._subnets.items() if "private" in key or item.is_existing]
        return private[0]

    def _groups(self) -> Iterator[Part]:
        """The instance groups of the cluster, as they are sent to SageMaker."""
        roles = {group.name: group for group in self._settings.cluster.instance_groups}
        for cluster in self._of("aws_cloudcontrolapi_resource"):
            for group in decoded(cluster.arguments["desired_state"])["InstanceGroups"]:
                name, count = group["InstanceGroupName"], group["InstanceCount"]
                storage = group.get("InstanceStorageConfigs", ())
                gib = sum(item.get("EbsVolumeConfig", {}).get("VolumeSizeInGB", 0) for item in storage)
                kinds = group.get("InstanceRequirements", {}).get("InstanceTypes") or [group["InstanceType"]]
                partition = f", partition {roles[name].partition}" if roles[name].partition else ""
                yield Part(
                    kind=roles[name].role.capitalize(),
                    name=name,
                    detail=f"{count} x {' or '.join(kinds)}, {gib} GiB{partition}",
                    usd_per_hour=prices.nodes(kinds[0], count, gib, region=self._settings.region),
                    address=cluster.address,
                )

    def _interface_endpoints(self) -> Iterator[Part]:
        """One part for all: they differ in the service's name alone."""
        endpoints = [resource for resource in self._of("aws_vpc_endpoint") if _is_interface(resource)]
        if endpoints:
            cost = sum(prices.of(item.type, item.arguments) or 0.0 for item in endpoints)
            services = ", ".join(_service(item) for item in endpoints)
            yield Part(kind="Interface endpoints", name=services, usd_per_hour=cost)

    def _add_existing(self) -> None:
        """Add the existing resources, which the file names by id."""
        settings = self._settings
        if isinstance(settings.network, ExistingNetwork):
            group = settings.network.security_group_id
            self._network.parts.append(Part(kind="Security group", name=group, is_existing=True))
        for kind, section in (("Lustre", settings.lustre), ("OpenZFS", settings.openzfs)):
            if isinstance(section, ExistingLustre | ExistingOpenZfs):
                part = Part(kind=kind, name=section.dns_name, detail=section.mount_path, is_existing=True)
                self._account.parts.append(part)
        if isinstance(settings.bucket, ExistingBucket):
            self._account.parts.append(Part(kind="Bucket", name=settings.bucket.name, is_existing=True))
        for kind, by_arn in (("Key", settings.key), ("Role", settings.role)):
            if isinstance(by_arn, ExistingKey | ExistingRole):
                self._account.parts.append(Part(kind=kind, name=by_arn.arn, is_existing=True))

    def _count_objects(self) -> None:
        """The objects that the cluster stack puts into the bucket, by the construct that does."""
        objects = Counter(item.path.partition("/")[0] for item in self._of("aws_s3_object"))
        for name, count in objects.items():
            self._account.parts.append(Part(kind="Objects in the bucket", name=name, detail=f"{count} objects"))

    def _flows(self) -> Iterator[Flow]:
        """Yield connections by rules, routes and endpoints; of an existing network those that it must allow."""
        yield Flow(NODES, NODES, "all traffic (EFA)")
        yield from (Flow(NODES, "Lustre", f"TCP {_numbers(*ports)}") for ports in facts.LUSTRE_PORTS)
        if not isinstance(self._settings.openzfs, NoOpenZfs):
            yield Flow(NODES, "OpenZFS", f"TCP {facts.NFS_PORT}")
        if self._of("aws_db_instance"):
            yield Flow(NODES, resource_type("aws_db_instance").label, f"TCP {facts.MYSQL_PORT}")
        gateways = [item for item in self._of("aws_vpc_endpoint") if not _is_interface(item)]
        yield Flow(NODES, "Bucket", "HTTPS by the S3 endpoint" if gateways else "HTTPS")
        for rule in self._of("aws_vpc_security_group_ingress_rule"):
            if rule.arguments.get("from_port") == facts.HTTPS_PORT:
                yield Flow(NODES, "Interface endpoints", f"TCP {facts.HTTPS_PORT}")
        for route in self._of("aws_route"):
            if "nat_gateway_id" in route.arguments:
                yield Flow(NODES, "NAT gateway", "internet")


def _part(resource: Resource) -> Part:
    arguments = resource.arguments
    kind = resource_type(resource.type).label or resource.type.removeprefix("aws_").replace("_", " ").capitalize()
    if resource.type == "aws_vpc_endpoint":
        kind = "S3 endpoint"
    prefixes = [f"{arguments[key]}…" for key in ("bucket_prefix", "name_prefix") if key in arguments]
    names = [*(arguments.get(key) for key in ("name", "bucket", "budget_name", "dashboard_name")), *prefixes]
    own_names = (*names, arguments.get("tags", {}).get("Name"))
    name = next((str(item) for item in own_names if item and "${" not in str(item)), resource.path)
    detail = ", ".join(_details(arguments))
    return Part(
        kind=kind, name=name, detail=detail, usd_per_hour=prices.of(resource.type, arguments), address=resource.address
    )


def _details(arguments: Mapping[str, Any]) -> Iterator[str]:
    for key, unit in (("deployment_type", ""), ("storage_capacity", " GiB"), ("throughput_capacity", " MB/s")):
        if arguments.get(key):
            yield f"{arguments[key]}{unit}"
    if arguments.get("per_unit_storage_throughput"):
        yield f"{arguments['per_unit_storage_throughput']} MB/s per TiB"


def _is_interface(resource: Resource) -> bool:
    return resource.type == "aws_vpc_endpoint" and resource.arguments.get("vpc_endpoint_type") == "Interface"


def _service(endpoint: Resource) -> str:
    """``com.amazonaws.${…}.ecr.api`` is ``ecr.api``."""
    return str(endpoint.arguments["service_name"]).rpartition("}.")[2]


def _texts(value: Any) -> Iterable[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _numbers(first_port: int, last_port: int) -> str:
    return str(first_port) if first_port == last_port else f"{first_port}-{last_port}"
