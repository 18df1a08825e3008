"""The HyperPod clusters of the account: one store behind Cloud Control and SageMaker's own API."""

from __future__ import annotations

import copy
import secrets
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from podwright_rehearsal.aws import clock, cluster_rules, service_model
from podwright_rehearsal.aws.account import Account, Subnet, random_id
from podwright_rehearsal.aws.aws_errors import AwsError, HandlerError
from podwright_rehearsal.aws.training_plans import TrainingPlans

IMAGE_RELEASES = ("2026.10.0", "2026.11.0")  # oldest first; AWS's own names of releases differ


@dataclass(frozen=True)
class Fault:
    """A state that a cluster or node is kept in on purpose, in AWS's words."""

    status: str
    message: str


@dataclass
class ClusterNode:
    """One instance. Its address stays when the instance is replaced."""

    group: str
    instance_type: str
    instance_id: str
    private_ip: str
    subnet: Subnet
    launched_at: float
    running_at: float
    updated_at: float | None = None  # when its software was updated last
    checked_at: float = 0  # when its deep health checks end
    image_release: str = IMAGE_RELEASES[-1]
    fault: Fault | None = None

    @property
    def status(self) -> str:
        """AWS's name of the state: Pending until the lifecycle script would have run."""
        if self.fault:
            return self.fault.status
        if clock.now() < self.running_at:
            return "Pending"
        return "Running" if clock.now() >= self.checked_at else "DeepHealthCheckInProgress"

    def private_dns_hostname(self, region: str) -> str:
        """Return the name that VPC's DNS gives the address."""
        domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        return f"ip-{self.private_ip.replace('.', '-')}.{domain}"


@dataclass(frozen=True)
class ClusterEvent:
    """Something that happened to a cluster, a group or an instance."""

    event_id: str
    at: float
    level: Literal["Info", "Warn", "Error"]
    description: str
    group: str | None = None
    instance_id: str | None = None
    metadata: Mapping[str, Any] | None = None  # One member of AWS's EventMetadata; None has no failure.

    @property
    def resource_type(self) -> str:
        """Return ResourceType: the most specific resource that is named."""
        return "Instance" if self.instance_id else "InstanceGroup" if self.group else "Cluster"


@dataclass
class EmulatedCluster:
    """One cluster: ``model`` is the desired state as CloudFormation has it, without read-only properties."""

    arn: str
    model: dict[str, Any]
    controller_groups: list[str]
    created_at: float
    settled_at: float
    changing: str = "Creating"  # the status until settled_at
    nodes: list[ClusterNode] = field(default_factory=list)
    events: list[ClusterEvent] = field(default_factory=list)  # oldest first
    fault: Fault | None = None

    def note(
        self,
        description: str,
        node: ClusterNode | None = None,
        *,
        group: str | None = None,
        level: Literal["Info", "Warn", "Error"] = "Info",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an event of the cluster, of a group or of a node."""
        instance_id = node.instance_id if node else None
        event_id = str(uuid.uuid4())
        group = node.group if node else group
        self.events.append(ClusterEvent(event_id, clock.now(), level, description, group, instance_id, metadata))

    @property
    def cluster_id(self) -> str:
        """The last part of the ARN, which names log group and session targets."""
        return self.arn.rpartition("/")[2]

    @property
    def name(self) -> str:
        """ClusterName."""
        return str(self.model["ClusterName"])

    @property
    def is_settled(self) -> bool:
        """True if no change is in progress."""
        return clock.now() >= self.settled_at

    @property
    def status(self) -> str:
        """ClusterStatus."""
        if self.fault:
            return self.fault.status
        return "InService" if self.is_settled else self.changing

    def group(self, name: str) -> dict[str, Any]:
        """Return the instance group of this name."""
        return next(group for group in self.model["InstanceGroups"] if group["InstanceGroupName"] == name)

    def nodes_of(self, group: str) -> list[ClusterNode]:
        """Return the group's nodes, oldest first."""
        return [node for node in self.nodes if node.group == group]


class EmulatedClusters:
    """Creates, changes and deletes clusters. Not thread-safe: the server calls it under its lock.

    Args:
        account: where the resources that a cluster refers to are looked up.
        plans: the training plans that instance groups may name.
        transition_s: how long creating, updating, replacing, rebooting, checking and deleting take.
    """

    def __init__(self, *, account: Account, plans: TrainingPlans, transition_s: float) -> None:
        self._account = account
        self._plans = plans
        self._transition_s = transition_s
        self._by_arn: dict[str, EmulatedCluster] = {}

    def all(self) -> list[EmulatedCluster]:
        """Return every cluster that is not deleted, oldest first."""
        deleted_arns = [
            arn for arn, cluster in self._by_arn.items() if cluster.changing == "Deleting" and cluster.is_settled
        ]
        for arn in deleted_arns:
            del self._by_arn[arn]
        return list(self._by_arn.values())

    def tagged(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield every cluster's ARN and tags."""
        for cluster in self.all():
            yield cluster.arn, {tag["Key"]: tag["Value"] for tag in cluster.model.get("Tags") or []}

    def find(self, name_or_arn: str) -> EmulatedCluster | None:
        """Return the cluster of this name or ARN, or None if it does not exist."""
        return next((cluster for cluster in self.all() if name_or_arn in (cluster.name, cluster.arn)), None)

    def create(self, model: dict[str, Any]) -> EmulatedCluster:
        """Start a cluster.

        Raises:
            HandlerError: the name is taken, or HyperPod would fail; every reason is named.
        """
        name = model.setdefault("ClusterName", f"cluster-{secrets.token_hex(6)}")
        if self.find(name):
            raise HandlerError("AlreadyExists", f"Cluster with name {name} already exists")
        self._refuse(self._problems(model))
        now = clock.now()
        cluster = EmulatedCluster(
            arn=self._account.arn("sagemaker", f"cluster/{secrets.token_hex(6)}"),
            model=model,
            controller_groups=cluster_rules.controller_groups(model, self._account),
            created_at=now,
            settled_at=now + self._transition_s,
        )
        cluster.nodes = list(self._nodes_for(cluster, model))
        cluster.note("Cluster creation started")
        _note_changes(cluster, before=[])
        self._by_arn[cluster.arn] = cluster
        return cluster

    def put_fault(self, *, cluster: str, node: str, status: str, message: str) -> None:
        """Keep a cluster, or a node by its id, in a state; an empty status ends that.

        Raises:
            LookupError: there is no such cluster or node.
        """
        emulated, faulty = self._resource(cluster, node)
        fault = Fault(status, message) if status else None
        if faulty is None:
            emulated.fault = fault
            return
        faulty.fault = fault
        if message:
            emulated.note(message, faulty, level="Error", metadata={"Instance": {"FailureMessage": message}})

    def put_event(
        self,
        *,
        cluster: str,
        node: str,
        level: Literal["Info", "Warn", "Error"],
        description: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Record an event of a cluster, or of a node by its id; ``metadata`` is AWS's EventMetadata.

        Raises:
            AwsError: AWS has no such metadata.
            LookupError: there is no such cluster or node.
        """
        emulated, affected = self._resource(cluster, node)
        shape = service_model.sagemaker().shape_for("EventMetadata")
        if violations := service_model.problems(shape, metadata):
            raise AwsError("ValidationException", "; ".join(violations))
        emulated.note(description, affected, level=level, metadata=metadata)

    def _resource(self, cluster: str, instance_id: str) -> tuple[EmulatedCluster, ClusterNode | None]:
        """Return the cluster and, unless the id is empty, its node.

        Raises:
            LookupError: there is no such cluster or node.
        """
        emulated = self.find(cluster)
        if emulated is None:
            raise LookupError(cluster)
        node = next((node for node in emulated.nodes if node.instance_id == instance_id), None)
        if node is None and instance_id:
            raise LookupError(instance_id)
        return emulated, node

    def update(self, cluster: EmulatedCluster, model: dict[str, Any]) -> None:
        """Update a cluster to another desired state; a failed update has no effect.

        Raises:
            HandlerError: HyperPod would fail; every reason is named.
        """
        self._refuse([*_unchangeable(cluster.model, model), *self._problems(model)])
        nodes = list(self._nodes_for(cluster, model))
        before, cluster.model, cluster.nodes = cluster.nodes, model, nodes
        cluster.note("Cluster update started")
        _note_changes(cluster, before=before)
        cluster.controller_groups = cluster_rules.controller_groups(model, self._account)
        self._change(cluster, "Updating")

    def update_software(self, cluster: EmulatedCluster, releases: Mapping[str, str]) -> None:
        """Install a release of the image on each named group's nodes: instances stay, root volumes are replaced."""
        cluster.note("Software update started")
        for node in cluster.nodes:
            if node.group in releases:
                node.updated_at = clock.now()
                node.image_release = releases[node.group]
                self.reboot(cluster, node)
        self._change(cluster, "SystemUpdating")

    def remove(self, cluster: EmulatedCluster, node: ClusterNode) -> None:
        """Remove a node, and lower its group's InstanceCount by one."""
        cluster.group(node.group)["InstanceCount"] -= 1
        cluster.nodes.remove(node)
        cluster.note("Instance is terminated", node)
        self._change(cluster, "Updating")

    def add(self, cluster: EmulatedCluster, group: str, count: int) -> list[ClusterNode]:
        """Raise a group's InstanceCount, and return the new nodes.

        Raises:
            HandlerError: HyperPod would fail; every reason is named.
        """
        model = copy.deepcopy(cluster.model)
        nodes_before = list(cluster.nodes)
        next(item for item in model["InstanceGroups"] if item["InstanceGroupName"] == group)["InstanceCount"] += count
        self.update(cluster, model)
        return [node for node in cluster.nodes if node not in nodes_before]

    def delete(self, cluster: EmulatedCluster) -> None:
        """Start to delete a cluster."""
        cluster.fault = None
        self._change(cluster, "Deleting")

    def replace(self, cluster: EmulatedCluster, node: ClusterNode) -> None:
        """Replace the instance: a new id, the same address, empty disks."""
        cluster.note("Instance is terminated: a replacement was requested", node)
        node.instance_id = random_id("i")
        node.fault = None
        node.launched_at, node.updated_at = clock.now(), None
        node.running_at = node.launched_at + self._transition_s
        cluster.note("Instance is launched", node)

    def reboot(self, cluster: EmulatedCluster, node: ClusterNode) -> None:
        """Restart an instance."""
        cluster.note("Instance restarts", node)
        node.running_at = clock.now() + self._transition_s

    def check_health(self, cluster: EmulatedCluster, node: ClusterNode) -> None:
        """Run deep health checks on a node, which pass. The event's words are a guess."""
        cluster.note("Deep health check started", node)
        node.checked_at = clock.now() + self._transition_s

    def _change(self, cluster: EmulatedCluster, status: str) -> None:
        cluster.changing = status
        cluster.settled_at = clock.now() + self._transition_s

    def _problems(self, model: dict[str, Any]) -> list[str]:
        return [*cluster_rules.problems(model, self._account), *self._plans.problems(model)]

    def _refuse(self, problems: list[str]) -> None:
        if problems:
            raise HandlerError("InvalidRequest", "; ".join(problems))

    def _nodes_for(self, cluster: EmulatedCluster, model: dict[str, Any]) -> Iterator[ClusterNode]:
        """Yield the nodes of a model: existing ones without the youngest surplus, then new ones."""
        used_addresses = self._account.addresses_in_use() | {
            node.private_ip for neighbour in self.all() for node in neighbour.nodes
        }
        for group in model["InstanceGroups"]:
            existing = cluster.nodes_of(group["InstanceGroupName"])[: group["InstanceCount"]]
            yield from existing
            for _ in range(group["InstanceCount"] - len(existing)):
                node = self._new_node(group, group.get("OverrideVpcConfig") or model["VpcConfig"], used_addresses)
                used_addresses.add(node.private_ip)
                yield node

    def _new_node(self, group: dict[str, Any], network: dict[str, list[str]], used_addresses: set[str]) -> ClusterNode:
        now = clock.now()
        for subnet in filter(None, map(self._account.subnet, network["Subnets"])):
            address = next((address for address in subnet.usable_addresses() if address not in used_addresses), None)
            if address:
                return ClusterNode(
                    group=group["InstanceGroupName"],
                    instance_type=cluster_rules.types_of(group)[0],
                    instance_id=random_id("i"),
                    private_ip=address,
                    subnet=subnet,
                    launched_at=now,
                    running_at=now + self._transition_s,
                )
        subnets = ", ".join(network["Subnets"])
        raise HandlerError("InvalidRequest", f"{subnets} has no free address left for {group['InstanceGroupName']}")


def _note_changes(cluster: EmulatedCluster, *, before: list[ClusterNode]) -> None:
    """Record the changes of a new list of nodes: each group's scaling, each added or removed instance."""
    for group in dict.fromkeys(node.group for node in [*before, *cluster.nodes]):
        was, now = (sum(node.group == group for node in nodes) for nodes in (before, cluster.nodes))
        if was != now:
            cluster.note(f"Instance group scales from {was} to {now}", group=group)
    for node in before:
        if node not in cluster.nodes:
            cluster.note("Instance is terminated", node)
    for node in cluster.nodes:
        if node not in before:
            cluster.note("Instance is launched", node)


def _unchangeable(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield changes that an update may not make: an instance group keeps its type and its role in Slurm.

    A group of a cluster that scripts set up has no role in the API; it gets one by the migration to the API.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config-migration.html
    """
    before = {group["InstanceGroupName"]: _fixed(group) for group in old["InstanceGroups"]}
    for group in new.get("InstanceGroups") or []:
        name, after = group["InstanceGroupName"], _fixed(group)
        for key, was in before.get(name, after).items():
            if was != after.get(key):
                yield f"{key} of {name} cannot change from {was} to {after.get(key)}: add a group of another name"


def _fixed(group: dict[str, Any]) -> dict[str, Any]:
    role = {"SlurmConfig.NodeType": group["SlurmConfig"].get("NodeType")} if "SlurmConfig" in group else {}
    return {"InstanceType": group.get("InstanceType"), **role}
