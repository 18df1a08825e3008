"""The FSx file systems of a cluster: capacity, fill from CloudWatch, and price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from podwright.aws_session import Session
from podwright.diagram import prices
from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import Cluster

GIB = 1 << 30
WINDOW = timedelta(minutes=15)  # FSx publishes each minute
PERIOD_S = 60
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html, free bytes of all disks as their sum, and
# https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/file-system-metrics.html
METRICS = {"LUSTRE": ("FreeDataStorageCapacity", "Sum"), "OPENZFS": ("UsedStorageCapacity", "Average")}


@dataclass(frozen=True)
class FileSystem(JsonObject):
    """A file system that the cluster's nodes mount."""

    id: str
    kind: Literal["LUSTRE", "OPENZFS"]
    status: str
    capacity_gib: int
    used_percent: float | None
    """null until CloudWatch has a value."""
    usd_per_hour: float | None


def file_systems(session: Session, cluster: Cluster) -> Iterator[FileSystem]:
    """Yield the file systems that the cluster's nodes mount.

    Raises:
        AwsError: AWS refuses or does not answer; needs ``fsx:DescribeFileSystems`` and ``cloudwatch:GetMetricData``.
    """
    if not cluster.file_system_ids:
        return
    descriptions = list(
        session.items("fsx", "describe_file_systems", "FileSystems", FileSystemIds=list(cluster.file_system_ids))
    )
    used = _used_percent(session, descriptions)
    for item in descriptions:
        yield FileSystem(
            id=item["FileSystemId"],
            kind=item["FileSystemType"],
            status=item["Lifecycle"],
            capacity_gib=item.get("StorageCapacity", 0),
            used_percent=used.get(item["FileSystemId"]),
            usd_per_hour=file_system_price(item),
        )


def _used_percent(session: Session, descriptions: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the newest fill of each file system that CloudWatch has a value of."""
    capacity = {item["FileSystemId"]: item.get("StorageCapacity", 0) * GIB for item in descriptions}
    queries = [_query(number, item) for number, item in enumerate(descriptions) if item["FileSystemType"] in METRICS]
    if not queries:
        return {}
    end = datetime.now(timezone.utc).replace(second=0, microsecond=0)  # the sum of a minute that runs lacks disks
    results = session.items(
        "cloudwatch",
        "get_metric_data",
        "MetricDataResults",
        MetricDataQueries=queries,
        StartTime=end - WINDOW,
        EndTime=end,
        ScanBy="TimestampDescending",
    )
    kinds = {item["FileSystemId"]: item["FileSystemType"] for item in descriptions}
    percent = {}
    for result in results:
        file_system_id = result["Label"]
        if not result["Values"] or not capacity.get(file_system_id):
            continue
        share = 100 * result["Values"][0] / capacity[file_system_id]
        percent[file_system_id] = max(0.0, 100 - share) if kinds[file_system_id] == "LUSTRE" else share
    return percent


def _query(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    name, statistic = METRICS[item["FileSystemType"]]
    dimension = {"Name": "FileSystemId", "Value": item["FileSystemId"]}
    metric = {"Namespace": "AWS/FSx", "MetricName": name, "Dimensions": [dimension]}
    return {
        "Id": f"fill{number}",
        "Label": item["FileSystemId"],
        "MetricStat": {"Metric": metric, "Period": PERIOD_S, "Stat": statistic},
    }


def file_system_price(item: Mapping[str, Any]) -> float | None:
    """Return a file system's price by what Terraform would call its arguments."""
    lustre = item.get("LustreConfiguration")
    if lustre is None:
        openzfs = item.get("OpenZFSConfiguration", {})
        arguments = {
            "deployment_type": openzfs.get("DeploymentType", ""),
            "storage_capacity": item.get("StorageCapacity"),
            "throughput_capacity": openzfs.get("ThroughputCapacity"),
            "iops": openzfs.get("DiskIopsConfiguration", {}).get("Iops", 0),
        }
        return prices.of("aws_fsx_openzfs_file_system", arguments)
    arguments = {
        "deployment_type": lustre["DeploymentType"],
        "storage_capacity": item.get("StorageCapacity"),
        "per_unit_storage_throughput": lustre.get("PerUnitStorageThroughput", 0),
    }
    return prices.of("aws_fsx_lustre_file_system", arguments)
