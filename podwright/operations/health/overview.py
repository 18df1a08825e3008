"""The state of a running cluster in one object: groups, nodes, file systems, events, cost and likely causes."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright.aws_session import Session
from podwright.diagram import prices
from podwright.errors import AwsError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.account import hyperpod as clusters
from podwright.operations.account.failures import Cause, causes
from podwright.operations.account.fsx import FileSystem, file_systems
from podwright.operations.account.hyperpod import Cluster, InstanceGroup, Node
from podwright.operations.health.topology import JobNode, job_nodes, topology
from podwright.operations.jobs.slurm_jobs import Job, queue
from podwright.operations.nodes.slurm_states import controller_shell

if TYPE_CHECKING:
    from podwright.operations.account.inventory import Leftover

FAILED = {"Failed", "RollingBack"}
CHANGING_NODE = {"Pending", "ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress"}
FAULTY_NODE = {"Failure", "NotFound"}
EVENTS_SHOWN = 8


@dataclass(frozen=True)
class Event(JsonObject):
    """An event of a cluster with continuous provisioning."""

    time: datetime
    level: str
    resource: str
    """Instance id, group or cluster."""
    description: str
    failure: str
    """AWS's reason, of warnings and errors; empty if it gives none."""


@dataclass(frozen=True)
class GroupState:
    """An instance group, its number of nodes by status, operations in progress, and its price, None if EC2 has none."""

    group: InstanceGroup
    statuses: dict[str, int]
    operations: dict[str, int]
    usd_per_hour: float | None
    plan_ends_at: datetime | None  # When AWS takes the nodes of its training plan back; None without a plan.


@dataclass(frozen=True)
class Overview:
    """The state of a cluster; ``missing`` names the parts that could not be read, with the reason."""

    cluster: Cluster
    groups: tuple[GroupState, ...]
    nodes: tuple[Node, ...]
    zones: dict[str, str]  # Availability zones by instance id.
    file_systems: tuple[FileSystem, ...]
    other_resources: tuple[Leftover, ...]  # Database, endpoints and NAT gateways of the cluster.
    events: tuple[Event, ...]
    jobs: tuple[Job, ...] | None  # None without --jobs, or if the controller did not answer.
    job_nodes: tuple[JobNode, ...] | None  # None without --job, or if the controller did not answer.
    topology: tuple[str, ...]  # Nodes that Slurm's topology lacks or still names; empty without --jobs and --job.
    causes: tuple[Cause, ...]
    drift: tuple[str, ...]  # Groups that differ from the settings file, each with both counts.
    missing: tuple[str, ...]

    @property
    def usd_per_hour(self) -> float:
        """The sum of all prices that are published, on demand; training plans are paid in advance."""
        nodes = sum(item.usd_per_hour or 0 for item in self.groups)
        return nodes + sum(item.usd_per_hour or 0 for item in self._parts)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Instance types and other parts without a published price."""
        types = {item.group.instance_type for item in self.groups if item.usd_per_hour is None}
        return (*sorted(types), *(item.id for item in self._parts if item.usd_per_hour is None))

    @property
    def _parts(self) -> tuple[FileSystem | Leftover, ...]:
        return (*self.file_systems, *self.other_resources)

    @property
    def is_healthy(self) -> bool:
        """True if neither the cluster nor a node has failed."""
        return self.cluster.status not in FAILED and not any(node.status in FAULTY_NODE for node in self.nodes)

    @property
    def is_settled(self) -> bool:
        """True if no change of cluster, groups or nodes is in progress."""
        if self.cluster.status != "InService":
            return self.cluster.status == "Failed"
        counts = all(item.group.current_count == item.group.target_count for item in self.groups)
        return counts and not any(node.status in CHANGING_NODE for node in self.nodes)


def overview(
    session: Session, name: str, *, jobs: bool = False, job_id: str | None = None, file: Path | None = None
) -> Overview:
    """Read the state of a cluster; parts that a permission is missing for are left out and named in ``missing``.

    Args:
        session: the account and region.
        name: the cluster's name or ARN.
        jobs: whether to ask Slurm for its jobs, on the controller.
        job_id: a job whose nodes are listed by rank.
        file: the cluster's settings file, to compare its groups with.

    Raises:
        ArgumentError: there is no such cluster.
        AwsError: AWS refuses to describe the cluster or its nodes.
    """
    cluster = clusters.find(session, name)
    nodes = clusters.nodes(session, cluster)
    missing: list[str] = []

    def optional(part: str, read: Any) -> Any:
        try:
            return read()
        except OperationError as error:
            missing.append(f"{part}: {error}")
            return None

    def other_costs() -> tuple[Leftover, ...]:
        from podwright.operations.account.inventory import hourly_extras  # --help need not wait for it

        return tuple(hourly_extras(session, cluster.name))

    def queued() -> tuple[Job, ...]:
        return tuple(queue(controller_shell(session, cluster, nodes)))

    def in_slurm() -> tuple[tuple[str, ...], tuple[JobNode, ...] | None]:
        shell = controller_shell(session, cluster, nodes)
        current = topology(shell)
        return tuple(current.problems()), tuple(job_nodes(shell, job_id, current)) if job_id else None

    events, denials = optional("events", lambda: _events(session, cluster)) or ((), ())
    missing.extend(f"reasons of events: {denial}" for denial in denials)
    messages = [
        cluster.failure_message,
        *(node.message for node in nodes if node.status in FAULTY_NODE),
        *(
            event.failure or event.description
            for event in events
            if event.level == "Error" and _is_current(event, cluster, nodes)
        ),
    ]
    plan_ends = dict(optional("training plans", lambda: list(_plan_ends(session, cluster))) or ())
    queued_jobs = optional("jobs", queued) if jobs else None
    topology_problems, placed = (optional("topology", in_slurm) if queued_jobs is not None or job_id else None) or (
        (),
        None,
    )
    return Overview(
        cluster=cluster,
        groups=tuple(_state(group, nodes, cluster.region, plan_ends) for group in cluster.groups),
        nodes=nodes,
        zones=dict(optional("zones", lambda: _zones(session, cluster, nodes)) or ()),
        file_systems=tuple(optional("file systems", lambda: tuple(file_systems(session, cluster))) or ()),
        other_resources=tuple(optional("other costs", other_costs) or ()),
        events=events,
        jobs=queued_jobs,
        job_nodes=placed,
        topology=topology_problems,
        causes=tuple(causes(cluster, messages)),
        drift=tuple(optional("differences from the settings", lambda: list(_drift(cluster, file))) or ()),
        missing=tuple(missing),
    )


def _is_current(event: Event, cluster: Cluster, nodes: Sequence[Node]) -> bool:
    """Return whether an event's failure still exists: the node was not replaced or restarted since."""
    for node in nodes:
        if node.instance_id == event.resource:
            return node.status in FAULTY_NODE | CHANGING_NODE
    for group in cluster.groups:
        if group.name == event.resource:
            return group.current_count != group.target_count
    return event.resource == cluster.name and cluster.status != "InService"


def _drift(cluster: Cluster, file: Path | None) -> Iterator[str]:
    """Yield the groups whose number of nodes differs between a settings file and AWS.

    Raises:
        OperationError: the file has errors.
    """
    if file is None:
        return
    from podwright.check.checked_settings import check
    from podwright.check.findings import has_errors, summary  # pydantic, for a cluster with a file

    report = check(file)
    if report.settings is None or has_errors(report.findings):
        reason = f"{file} has {summary(report.findings)}, which `podwright check` shows; the rest is AWS's state"
        raise OperationError(reason)
    settings = report.settings
    configured = {group.name: group.count for group in settings.cluster.instance_groups}
    running = {group.name: group.target_count for group in cluster.groups}
    for name in dict.fromkeys([*configured, *running]):
        if configured.get(name) != running.get(name):
            yield f"{name}: AWS has {_nodes(running.get(name))}, {file.name} says {_nodes(configured.get(name))}"


def _nodes(count: int | None) -> str:
    return "no such group" if count is None else f"{count} {'node' if count == 1 else 'nodes'}"


def _plan_ends(session: Session, cluster: Cluster) -> Iterator[tuple[str, datetime]]:
    """Yield the ARN of each group's training plan and when it ends.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingPlan.html
    """
    for arn in sorted({group.training_plan_arn for group in cluster.groups} - {""}):
        plan = session.call("sagemaker", "describe_training_plan", TrainingPlanName=arn)
        if "EndTime" in plan:
            yield arn, plan["EndTime"]


def _state(group: InstanceGroup, nodes: Sequence[Node], region: str, plan_ends: Mapping[str, datetime]) -> GroupState:
    volumes = [item.get("EbsVolumeConfig", {}) for item in group.description.get("InstanceStorageConfigs", ())]
    volume_gib = sum(volume.get("VolumeSizeInGB", 0) for volume in volumes)
    prepaid, count = bool(group.training_plan_arn), group.current_count
    return GroupState(
        group=group,
        statuses=dict(Counter(node.status for node in nodes if node.group == group.name)),
        operations=dict(group.description.get("ActiveOperations", {})),
        usd_per_hour=0.0 if prepaid else prices.nodes(group.instance_type, count, volume_gib, region=region),
        plan_ends_at=plan_ends.get(group.training_plan_arn),
    )


def _zones(session: Session, cluster: Cluster, nodes: Iterable[Node]) -> list[tuple[str, str]]:
    """Return the zone of each node by the subnet that its address is in: one call for any number of nodes."""
    subnet_ids = sorted({*cluster.subnet_ids, *(subnet for group in cluster.groups for subnet in group.subnet_ids)})
    if not subnet_ids:
        return []
    described = session.items("ec2", "describe_subnets", "Subnets", SubnetIds=subnet_ids)
    with_ipv4 = (item for item in described if item.get("CidrBlock"))
    subnets = [(ipaddress.ip_network(item["CidrBlock"]), item["AvailabilityZone"]) for item in with_ipv4]
    placed = [(node, ipaddress.ip_address(node.private_ip)) for node in nodes if node.private_ip]
    return [(node.instance_id, zone) for node, address in placed for block, zone in subnets if address in block]


def _events(session: Session, cluster: Cluster) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """Return the newest events, oldest first, and AWS's refusals to describe one, each once.

    Only clusters with continuous provisioning have events. A list of events has no reasons of failures, which each
    event's own description has.
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ListClusterEvents.html
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeClusterEvent.html
    """
    if cluster.node_provisioning_mode != "Continuous":
        return (), ()
    answer = session.call(
        "sagemaker",
        "list_cluster_events",
        ClusterName=cluster.arn,
        SortBy="EventTime",
        SortOrder="Descending",
        MaxResults=EVENTS_SHOWN,
    )
    events: list[Event] = []
    denials: list[str] = []
    for item in reversed(answer["Events"]):
        failure = ""
        try:
            failure = _failure(session, cluster, item) if item.get("EventLevel") in {"Warn", "Error"} else ""
        except AwsError as error:
            if not error.denied:
                raise
            denials.append(str(error))
        events.append(_event(item, failure))
    return tuple(events), tuple(dict.fromkeys(denials))


def _event(item: Mapping[str, Any], failure: str) -> Event:
    return Event(
        time=item["EventTime"],
        level=item.get("EventLevel", "Info"),
        resource=item.get("InstanceId") or item.get("InstanceGroupName") or item["ClusterName"],
        description=" ".join(item.get("Description", "").split()),
        failure=failure,
    )


def _failure(session: Session, cluster: Cluster, item: Mapping[str, Any]) -> str:
    """Return the reason in an event's metadata; empty if there is none.

    Raises:
        AwsError: AWS refuses, or does not answer.
    """
    try:
        answer = session.call("sagemaker", "describe_cluster_event", ClusterName=cluster.arn, EventId=item["EventId"])
    except AwsError as error:
        if error.absent:
            return ""
        raise
    metadata = answer["EventDetails"].get("EventDetails", {}).get("EventMetadata", {})
    reasons = (part.get("FailureMessage") or part.get("Reason") for part in metadata.values())
    return " ".join(" ".join(filter(None, reasons)).split())
