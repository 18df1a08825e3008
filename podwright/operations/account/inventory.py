"""Find resources of a cluster that still cost money: by its tag, by its name, and by references to it.

Every listing needs one read permission. Prices are those of ``podwright.list_prices``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from podwright.aws_session import Session
from podwright.diagram import prices
from podwright.errors import AwsError, OperationError
from podwright.json_document import JsonObject
from podwright.list_prices import (
    ADDRESS_USD_PER_HOUR,
    BACKUP_USD_PER_GIB_MONTH,
    EBS_USD_PER_GIB_MONTH,
    ENDPOINT_USD_PER_HOUR,
    LOGS_USD_PER_GIB_MONTH,
    MONTH_H,
    SECRET_USD_PER_MONTH,
    SNAPSHOT_USD_PER_GIB_MONTH,
)
from podwright.operations.account.bucket import GIB, Contents
from podwright.operations.account.fsx import file_system_price
from podwright.settings import names
from podwright_constructs import facts

Description = Mapping[str, Any]


@dataclass(frozen=True)
class Leftover(JsonObject):
    """A resource that still costs money, or keeps the network from being deleted."""

    kind: str
    id: str
    detail: str
    usd_per_hour: float | None = field(metadata={"digits": 6})
    """null where it is not known."""
    delete: str
    """The command of the AWS CLI that deletes it."""


@dataclass
class Inventory:
    """The remaining resources of a cluster, in the order in which they can be deleted.

    ``free`` are ARNs of tagged resources without a price of their own; ``unanswered`` are listings that AWS refused;
    ``instance_types`` are those of nodes in ``left``.
    """

    cluster: str
    region: str
    leftovers: list[Leftover] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    instance_types: list[str] = field(default_factory=list)

    @property
    def usd_per_hour(self) -> float:
        """The sum of the known prices."""
        return sum(item.usd_per_hour or 0.0 for item in self.leftovers)

    @property
    def summary(self) -> str:
        """The last line: ``0 left, 0 $/h``; with a price also that of a month."""
        unknown = sum(item.usd_per_hour is None for item in self.leftovers)
        price = f"{self.usd_per_hour:,.4f}".rstrip("0").rstrip(".")
        by_month = f"{self.usd_per_hour * MONTH_H:,.0f}"
        price += " $/h" if by_month == "0" else f" $/h, {by_month} $/month"
        words = f"{len(self.leftovers)} left, {price}" + (f" and {unknown} without a known price" if unknown else "")
        return f"{words}; {len(self.unanswered)} listings were refused" if self.unanswered else words


def inventory(session: Session, cluster: str) -> Inventory:
    """List resources of a cluster that still cost money.

    Args:
        session: The account and region.
        cluster: The cluster's name; it may be gone already, and need not be podwright's.
    """
    inventory = Inventory(cluster, session.region)
    search = _Search(session, cluster)
    tagged = _answered(inventory, search.tagged) or {}
    listings: Sequence[Callable[[], Iterator[Leftover]]] = (
        search.nodes,
        search.databases,
        search.database_snapshots,
        search.file_systems,
        search.backups,
        search.endpoints,
        search.nat_gateways,
        search.addresses,
        search.interfaces,
        search.volumes,
        search.snapshots,
        search.buckets,
        search.log_groups,
        search.secrets,
        search.keys,
    )
    for listing in listings:
        inventory.leftovers += _answered(inventory, partial(list[Leftover], listing())) or []
    inventory.instance_types = search.instance_types
    listed_ids = {item.id for item in inventory.leftovers}
    inventory.free = sorted(arn for arn in tagged if not any(identifier in arn for identifier in listed_ids))
    return inventory


def hourly_extras(session: Session, cluster: str) -> Iterator[Leftover]:
    """Yield what a running cluster costs per hour in addition to nodes and file systems, except for cents a day.

    Raises:
        OperationError: AWS does not answer.
    """
    search = _Search(session, cluster)
    for listing in (search.databases, search.endpoints, search.nat_gateways):
        yield from listing()


def _answered(inventory: Inventory, ask: Callable[[], Any]) -> Any:
    """Return an answer; note a refused call and continue, because the other calls still find resources."""
    try:
        return ask()
    except OperationError as error:
        if not getattr(error, "denied", False):
            raise
        inventory.unanswered.append(str(error))
        return None


class _Search:
    """The listings of one cluster."""

    def __init__(self, session: Session, cluster: str) -> None:
        self._session = session
        self._cluster = cluster
        self._tagged: dict[str, Description] | None = None
        self.instance_types: list[str] = []  # The nodes' types, once they are listed.
        self._filter = [{"Name": f"tag:{names.CLUSTER_TAG}", "Values": [cluster]}]

    def tagged(self) -> dict[str, Description]:
        """Return the tags of every resource with the cluster's tag by ARN; asked once."""
        if self._tagged is None:
            tag_filters = [{"Key": names.CLUSTER_TAG, "Values": [self._cluster]}]
            key = "ResourceTagMappingList"
            items = self._session.items("resourcegroupstaggingapi", "get_resources", key, TagFilters=tag_filters)
            self._tagged = {item["ResourceARN"]: item for item in items}
        return self._tagged

    def nodes(self) -> Iterator[Leftover]:
        """The instance groups of the cluster."""
        try:
            cluster = self._session.call("sagemaker", "describe_cluster", ClusterName=self._cluster)
        except AwsError as error:
            if error.absent:
                return
            raise
        for group in (*cluster["InstanceGroups"], *cluster.get("RestrictedInstanceGroups", ())):
            storage = group.get("InstanceStorageConfigs", ())
            gib = sum(item.get("EbsVolumeConfig", {}).get("VolumeSizeInGB", 0) for item in storage)
            name = f"{self._cluster}/{group['InstanceGroupName']}"
            delete = f"aws sagemaker delete-cluster --cluster-name {self._cluster}"
            for item in group.get("InstanceTypeDetails") or (group,):  # a group of several types counts each
                count, kind = item.get("CurrentCount", 0), item.get("InstanceType", "")
                self.instance_types.append(kind)
                price = prices.nodes(kind, count, gib, region=self._session.region) if kind else None
                yield Leftover("nodes", name, f"{count} x {kind}, {cluster['ClusterStatus']}", price, delete)

    def databases(self) -> Iterator[Leftover]:
        """The accounting database."""
        for item in self._session.items("rds", "describe_db_instances", "DBInstances"):
            if self._is_tagged(item.get("TagList", ())):
                name, detail = item["DBInstanceIdentifier"], f"{item['DBInstanceClass']}, {item['DBInstanceStatus']}"
                arguments = {
                    "instance_class": item["DBInstanceClass"],
                    "allocated_storage": item.get("AllocatedStorage", 0),
                    "multi_az": item.get("MultiAZ", False),
                }
                price = prices.of("aws_db_instance", arguments)
                delete = f"aws rds delete-db-instance --skip-final-snapshot --db-instance-identifier {name}"
                yield Leftover("database", name, detail, price, delete)

    def database_snapshots(self) -> Iterator[Leftover]:
        """Snapshots of the accounting database."""
        prefix = names.database_name(self._cluster)
        for item in self._session.items("rds", "describe_db_snapshots", "DBSnapshots", SnapshotType="manual"):
            if self._is_tagged(item.get("TagList", ())) or item["DBInstanceIdentifier"] == prefix:
                name, gib = item["DBSnapshotIdentifier"], item.get("AllocatedStorage", 0)
                delete = f"aws rds delete-db-snapshot --db-snapshot-identifier {name}"
                yield Leftover("database snapshot", name, f"{gib} GiB", _monthly(gib, BACKUP_USD_PER_GIB_MONTH), delete)

    def file_systems(self) -> Iterator[Leftover]:
        """FSx for Lustre and for OpenZFS."""
        for item in self._session.items("fsx", "describe_file_systems", "FileSystems"):
            if self._is_tagged(item.get("Tags", ())) and item["Lifecycle"] != "DELETING":
                gib = item.get("StorageCapacity")
                size = f"{gib} GiB" if gib else item.get("StorageType", "no fixed size")  # INTELLIGENT_TIERING grows
                name, detail = item["FileSystemId"], f"{item['FileSystemType']}, {size}, {item['Lifecycle']}"
                delete = f"aws fsx delete-file-system --file-system-id {name}"
                yield Leftover("file system", name, detail, file_system_price(item), delete)

    def backups(self) -> Iterator[Leftover]:
        """Backups of file systems."""
        for item in self._session.items("fsx", "describe_backups", "Backups"):
            if self._is_tagged([*item.get("Tags", ()), *item.get("FileSystem", {}).get("Tags", ())]):
                name, gib = item["BackupId"], item.get("FileSystem", {}).get("StorageCapacity", 0)
                delete = f"aws fsx delete-backup --backup-id {name}"
                detail = f"at most {gib} GiB"
                yield Leftover("backup", name, detail, _monthly(gib, BACKUP_USD_PER_GIB_MONTH), delete)

    def endpoints(self) -> Iterator[Leftover]:
        """Yield interface endpoints; gateway endpoints of S3 are free."""
        for item in self._session.items("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=self._filter):
            if item["VpcEndpointType"] == "Interface" and item["State"].lower() not in {"deleted", "deleting"}:
                name, zones = item["VpcEndpointId"], len(item.get("SubnetIds", ())) or 1
                delete = f"aws ec2 delete-vpc-endpoints --vpc-endpoint-ids {name}"
                yield Leftover("endpoint", name, item["ServiceName"], zones * ENDPOINT_USD_PER_HOUR, delete)

    def nat_gateways(self) -> Iterator[Leftover]:
        """NAT gateways; the price includes the address."""
        for item in self._session.items("ec2", "describe_nat_gateways", "NatGateways", Filters=self._filter):
            if item["State"] not in {"deleted", "deleting", "failed"}:
                name = item["NatGatewayId"]
                delete = f"aws ec2 delete-nat-gateway --nat-gateway-id {name}"
                yield Leftover("NAT gateway", name, item["State"], prices.of("aws_nat_gateway", {}), delete)

    def addresses(self) -> Iterator[Leftover]:
        """Yield unused Elastic IP addresses."""
        for item in self._session.call("ec2", "describe_addresses", Filters=self._filter)["Addresses"]:
            if not item.get("AssociationId") and not item.get("NetworkInterfaceId"):
                name = item["AllocationId"]
                delete = f"aws ec2 release-address --allocation-id {name}"
                yield Leftover("address", name, item.get("PublicIp", ""), ADDRESS_USD_PER_HOUR, delete)

    def interfaces(self) -> Iterator[Leftover]:
        """Network interfaces that a service left in the cluster's VPC: free, but they keep it from being deleted."""
        vpcs = [item["VpcId"] for item in self._session.items("ec2", "describe_vpcs", "Vpcs", Filters=self._filter)]
        interface_filters = [{"Name": "vpc-id", "Values": vpcs}, {"Name": "status", "Values": ["available"]}]
        interfaces = self._session.items(
            "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=interface_filters
        )
        for item in interfaces if vpcs else ():
            if item.get("Association") or item["InterfaceType"] not in {"interface", "efa", "efa-only"}:
                continue  # A NAT gateway or an endpoint deletes its own.
            name, detail = item["NetworkInterfaceId"], f"{item['SubnetId']}, {item.get('Description', '')}"
            delete = f"aws ec2 delete-network-interface --network-interface-id {name}"
            yield Leftover("network interface", name, detail.rstrip(", "), 0.0, delete)

    def volumes(self) -> Iterator[Leftover]:
        """Yield EBS volumes in this account; the nodes' volumes are in SageMaker's account."""
        for item in self._session.items("ec2", "describe_volumes", "Volumes", Filters=self._filter):
            name, gib = item["VolumeId"], item["Size"]
            delete = f"aws ec2 delete-volume --volume-id {name}"
            price = _monthly(gib, EBS_USD_PER_GIB_MONTH)
            yield Leftover("volume", name, f"{gib} GiB, {item['State']}", price, delete)

    def snapshots(self) -> Iterator[Leftover]:
        """EBS snapshots."""
        request = {"OwnerIds": ["self"], "Filters": self._filter}
        for item in self._session.items("ec2", "describe_snapshots", "Snapshots", **request):
            name, gib = item["SnapshotId"], item["VolumeSize"]
            delete = f"aws ec2 delete-snapshot --snapshot-id {name}"
            detail = f"at most {gib} GiB"
            yield Leftover("snapshot", name, detail, _monthly(gib, SNAPSHOT_USD_PER_GIB_MONTH), delete)

    def buckets(self) -> Iterator[Leftover]:
        """Buckets, with all versions of their objects."""
        for arn in self._of("s3"):
            name = arn.rpartition(":")[2]
            contents = Contents(self._session, name)
            if not contents.exists:  # the Tagging API lists a deleted one for a while
                continue
            price = contents.usd_per_month / MONTH_H
            yield Leftover("bucket", name, str(contents), price, f"empty it in the console, then aws s3 rb s3://{name}")

    def log_groups(self) -> Iterator[Leftover]:
        """Log groups of the cluster's nodes and of its VPC's flow logs."""
        tagged = {arn.split(":", 6)[6].removesuffix(":*") for arn in self._of("logs")}
        own_prefix = f"{facts.LOG_GROUPS}/{self._cluster}/"
        for prefix in (own_prefix, *sorted(name for name in tagged if not name.startswith(own_prefix))):
            for item in self._session.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
                name, size = item["logGroupName"], item.get("storedBytes", 0)
                if prefix != own_prefix and name not in tagged:
                    continue
                delete = f"aws logs delete-log-group --log-group-name {name}"
                price = _monthly(size / GIB, LOGS_USD_PER_GIB_MONTH)
                yield Leftover("log group", name, f"{size / GIB:,.2f} GiB", price, delete)

    def secrets(self) -> Iterator[Leftover]:
        """Secrets."""
        tag_filters = [{"Key": "tag-value", "Values": [self._cluster]}]
        for item in self._session.items("secretsmanager", "list_secrets", "SecretList", Filters=tag_filters):
            if self._is_tagged(item.get("Tags", ())) and not item.get("DeletedDate"):
                delete = f"aws secretsmanager delete-secret --secret-id {item['Name']}"
                yield Leftover("secret", item["Name"], "", SECRET_USD_PER_MONTH / MONTH_H, delete)

    def keys(self) -> Iterator[Leftover]:
        """Yield KMS keys; a key that is scheduled for deletion is free."""
        for arn in self._of("kms"):
            name = arn.rpartition("/")[2]
            state = self._session.call("kms", "describe_key", KeyId=name)["KeyMetadata"]["KeyState"]
            if state != "PendingDeletion":
                delete = f"aws kms schedule-key-deletion --key-id {name}"
                yield Leftover("key", name, state, prices.of("aws_kms_key", {}), delete)

    def _of(self, service: str) -> list[str]:
        """Return the tagged ARNs of a service."""
        return sorted(arn for arn in self.tagged() if arn.split(":")[2] == service)

    def _is_tagged(self, tags: Sequence[Mapping[str, str]]) -> bool:
        return {"Key": names.CLUSTER_TAG, "Value": self._cluster} in [
            {"Key": tag.get("Key"), "Value": tag.get("Value")} for tag in tags
        ]


def _monthly(gib: float, usd_per_gib_month: float) -> float:
    return gib * usd_per_gib_month / MONTH_H
