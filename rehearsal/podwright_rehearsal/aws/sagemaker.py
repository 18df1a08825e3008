"""SageMaker's API for HyperPod clusters: clusters, and the operations on nodes.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Operations_Amazon_SageMaker_Service.html
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from podwright_rehearsal.aws import cluster_rules, cluster_schema, service_model
from podwright_rehearsal.aws.aws_errors import AwsError, HandlerError
from podwright_rehearsal.aws.hyperpod import (
    IMAGE_RELEASES,
    ClusterEvent,
    ClusterNode,
    EmulatedCluster,
    EmulatedClusters,
)

PAGE_SIZE = 100  # the API's MaxResults at most
BATCH_SIZE = 25
ADDED_GROUPS, ADDED_NODES = 5, 50  # members of NodesToAdd, and nodes in each, at most
CHECKS_OF_SLURM = {"InstanceStress", "InstanceConnectivity"}
MIN_CONNECTED_NODES = 2  # The page of deep health checks says so of InstanceConnectivity.
FAILED_LATER = "NotStabilized"  # a change that is accepted and fails minutes later
_DESCRIBED = (  # Members of a group that answers have under the request's names.
    *("InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore"),
    *("InstanceStorageConfigs", "OverrideVpcConfig", "SlurmConfig", "TrainingPlanArn", "OnStartDeepHealthChecks"),
    *("CapacityRequirements", "NetworkInterface", "ScheduledUpdateConfig", "AutoPatchConfig"),
)
_CODES = {"InstanceIdNotFound": "NodeIdNotFound"}  # BatchDeleteClusterNodes has a word of its own


class SageMaker:
    """The service. Not thread-safe: the server calls it under its lock.

    Args:
        clusters: the store.
        region: for the nodes' host names.
    """

    def __init__(self, *, clusters: EmulatedClusters, region: str) -> None:
        self._clusters = clusters
        self._region = region
        self.operations = {
            "CreateCluster": self.create_cluster,
            "DescribeCluster": self.describe_cluster,
            "ListClusters": self.list_clusters,
            "UpdateCluster": self.update_cluster,
            "UpdateClusterSoftware": self.update_cluster_software,
            "DeleteCluster": self.delete_cluster,
            "ListClusterNodes": self.list_cluster_nodes,
            "DescribeClusterNode": self.describe_cluster_node,
            "ListClusterEvents": self.list_cluster_events,
            "DescribeClusterEvent": service_model.validated("DescribeClusterEvent", self.describe_cluster_event),
            "StartClusterHealthCheck": service_model.validated(
                "StartClusterHealthCheck", self.start_cluster_health_check
            ),
            "BatchAddClusterNodes": self.batch_add_cluster_nodes,
            "BatchReplaceClusterNodes": self.batch_replace_cluster_nodes,
            "BatchRebootClusterNodes": self.batch_reboot_cluster_nodes,
            "BatchDeleteClusterNodes": self.batch_delete_cluster_nodes,
        }

    def create_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateCluster: refuse requests that CloudFormation's schema or HyperPod refuses."""
        model = copy.deepcopy(dict(request))
        if problems := cluster_schema.problems(model, region=self._region):
            raise AwsError("ValidationException", "; ".join(problems))
        try:
            return {"ClusterArn": self._clusters.create(model).arn}
        except HandlerError as error:
            if error.code == FAILED_LATER:
                return {"ClusterArn": self._find(request).arn}
            code = "ResourceInUse" if error.code == "AlreadyExists" else "ValidationException"
            raise AwsError(code, error.message) from None

    def describe_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeCluster."""
        cluster = self._find(request)
        copied = ("ClusterName", "VpcConfig", "NodeRecovery", "Orchestrator", "NodeProvisioningMode", "ClusterRole")
        return {
            **{key: cluster.model[key] for key in copied if key in cluster.model},
            "ClusterArn": cluster.arn,
            "ClusterStatus": cluster.status,
            "CreationTime": cluster.created_at,
            "InstanceGroups": [_group(cluster, group) for group in cluster.model["InstanceGroups"]],
            **({"FailureMessage": cluster.fault.message} if cluster.fault else {}),
        }

    def list_clusters(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListClusters, oldest first."""
        part = request.get("NameContains", "")
        summaries = [
            {
                "ClusterArn": cluster.arn,
                "ClusterName": cluster.name,
                "CreationTime": cluster.created_at,
                "ClusterStatus": cluster.status,
            }
            for cluster in self._clusters.all()
            if part in cluster.name
        ]
        return _page("ClusterSummaries", summaries, request)

    def update_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateCluster: change or add the named groups, delete the groups to delete, keep the others."""
        cluster = self._find_settled(request)
        requested = {group["InstanceGroupName"]: group for group in request.get("InstanceGroups") or []}
        deleted_names = set(request.get("InstanceGroupsToDelete") or [])
        groups = {group["InstanceGroupName"]: group for group in cluster.model["InstanceGroups"]} | requested
        changed = ("NodeRecovery", "NodeProvisioningMode", "Orchestrator", "TieredStorageConfig", "ClusterRole")
        model = {
            **cluster.model,
            **{key: request[key] for key in changed if key in request},
            "InstanceGroups": [group for name, group in groups.items() if name not in deleted_names],
        }
        try:
            self._clusters.update(cluster, model)
        except HandlerError as error:
            if error.code == FAILED_LATER:
                return {"ClusterArn": cluster.arn}
            raise AwsError("ValidationException", error.message) from None
        return {"ClusterArn": cluster.arn}

    def update_cluster_software(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateClusterSoftware: of the groups that are named, or of all; to a release, or to the newest."""
        cluster = self._find_settled(request)
        group_names = {group["InstanceGroupName"] for group in cluster.model["InstanceGroups"]}
        named = request.get("InstanceGroups") or [{"InstanceGroupName": name} for name in group_names]
        release_by_group = {
            group["InstanceGroupName"]: group.get("ImageReleaseVersion", IMAGE_RELEASES[-1]) for group in named
        }
        if unknown := release_by_group.keys() - group_names:
            raise AwsError("ValidationException", f"{cluster.name} has no instance group {', '.join(sorted(unknown))}")
        if unknown := set(release_by_group.values()) - set(IMAGE_RELEASES):
            raise AwsError("ValidationException", f"there is no image release {', '.join(sorted(unknown))}")
        if request.get("DeploymentConfig") and not cluster_rules.updates_in_batches(cluster.model):
            raise AwsError("ValidationException", f"DeploymentConfig: {cluster_rules.NO_BATCHES}")
        self._clusters.update_software(cluster, release_by_group)
        return {"ClusterArn": cluster.arn}

    def delete_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DeleteCluster."""
        cluster = self._find_settled(request)
        self._clusters.delete(cluster)
        return {"ClusterArn": cluster.arn}

    def list_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListClusterNodes."""
        part = request.get("InstanceGroupNameContains", "")
        nodes = [node for node in self._find(request).nodes if part in node.group]
        return _page("ClusterNodeSummaries", [self._summary(node) for node in nodes], request)

    def describe_cluster_node(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeClusterNode: also the address, which lists lack."""
        cluster = self._find(request)
        node = _node(cluster, request.get("NodeId", ""), code="ResourceNotFound")
        group = cluster.group(node.group)
        copied = ("LifeCycleConfig", "ThreadsPerCore", "InstanceStorageConfigs", "OverrideVpcConfig")
        details = {
            **self._summary(node),
            **{key: group[key] for key in copied if key in group},
            "PrivatePrimaryIp": node.private_ip,
            "Placement": {
                "AvailabilityZone": node.subnet.availability_zone,
                "AvailabilityZoneId": node.subnet.availability_zone_id,
            },
        }
        return {"NodeDetails": details}

    def list_cluster_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListClusterEvents, newest first unless asked otherwise."""
        cluster = self._find_continuous(request)
        after, before = request.get("EventTimeAfter", 0), request.get("EventTimeBefore", float("inf"))
        events = [
            event
            for event in cluster.events
            if after <= event.at <= before
            and request.get("InstanceGroupName", event.group) == event.group
            and request.get("NodeId", event.instance_id) == event.instance_id
            and request.get("ResourceType", event.resource_type) == event.resource_type
        ]
        if request.get("SortOrder") != "Ascending":
            events.reverse()
        return _page("Events", [_event(cluster, event) for event in events], request)

    def describe_cluster_event(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeClusterEvent: also the metadata, which lists lack."""
        cluster = self._find_continuous(request)
        event_id = request.get("EventId")
        event = next((event for event in cluster.events if event.event_id == event_id), None)
        if event is None:
            raise AwsError("ResourceNotFound", f"{cluster.name} has no event {event_id}")
        metadata = event.metadata or {event.resource_type: {"FailureMessage": None}}
        return {"EventDetails": {**_event(cluster, event), "EventDetails": {"EventMetadata": metadata}}}

    def start_cluster_health_check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """StartClusterHealthCheck: on the named instances, or on the whole group.

        AWS's pages say what the checks need, but not the errors: all codes except ResourceNotFound are guesses.
        https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StartClusterHealthCheck.html
        https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-deep-health-checks.html
        """
        cluster = self._find(request)
        nodes: dict[str, ClusterNode] = {}  # Overlapping configurations count as one.
        for configuration in request["DeepHealthCheckConfigurations"]:
            nodes |= {node.instance_id: node for node in _nodes_to_check(cluster, configuration)}
        for node in nodes.values():
            self._clusters.check_health(cluster, node)
        return {"ClusterArn": cluster.arn}

    def _find_continuous(self, request: Mapping[str, Any]) -> EmulatedCluster:
        cluster = self._find(request)
        if cluster.model.get("NodeProvisioningMode") != "Continuous":
            raise AwsError(
                "ValidationException",
                f"Events of {cluster.name} are not supported: its NodeProvisioningMode is not Continuous",
            )
        return cluster

    def batch_add_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """BatchAddClusterNodes: more nodes for groups of a cluster with continuous provisioning.

        https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_BatchAddClusterNodes.html
        """
        cluster = self._find(request)
        if cluster.model.get("NodeProvisioningMode") != "Continuous":
            raise AwsError("ValidationException", "BatchAddClusterNodes needs NodeProvisioningMode Continuous")
        additions = request.get("NodesToAdd") or []
        if not 0 < len(additions) <= ADDED_GROUPS:
            raise AwsError(
                "ValidationException", f"NodesToAdd must have 1 to {ADDED_GROUPS} members, not {len(additions)}"
            )
        group_names = {group["InstanceGroupName"] for group in cluster.model["InstanceGroups"]}
        successful: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for item in additions:
            name, count = item["InstanceGroupName"], item["IncrementTargetCountBy"]
            if not 0 < count <= ADDED_NODES:
                raise AwsError("ValidationException", f"IncrementTargetCountBy must be 1 to {ADDED_NODES}, not {count}")
            failure = {"InstanceGroupName": name, "FailedCount": count}
            if name not in group_names:
                failed.append({**failure, "ErrorCode": "InstanceGroupNotFound", "Message": f"No instance group {name}"})
                continue
            if name in cluster.controller_groups:
                message = f"{name} runs the Slurm controller: it cannot grow"
                failed.append({**failure, "ErrorCode": "InvalidInstanceGroupStatus", "Message": message})
                continue
            try:
                added = self._clusters.add(cluster, name, count)
            except HandlerError as error:
                raise AwsError("ValidationException", error.message) from None
            successful += [
                {"NodeLogicalId": f"node-{node.instance_id}", "InstanceGroupName": name, "Status": node.status}
                for node in added
            ]
        return {"Successful": successful, "Failed": failed}

    def batch_replace_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """BatchReplaceClusterNodes: new instances with the same addresses; never controllers."""
        cluster = self._find(request)

        def replace(node: ClusterNode) -> None:
            if node.group in cluster.controller_groups:
                raise AwsError(
                    "InvalidInstanceStatus", f"{node.instance_id} is a Slurm controller: it cannot be replaced"
                )
            self._clusters.replace(cluster, node)

        return _batch(cluster, request, replace)

    def batch_reboot_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """BatchRebootClusterNodes."""
        cluster = self._find(request)
        return _batch(cluster, request, partial(self._clusters.reboot, cluster))

    def batch_delete_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """BatchDeleteClusterNodes: never controllers."""
        cluster = self._find_settled(request)

        def delete(node: ClusterNode) -> None:
            if node.group in cluster.controller_groups:
                raise AwsError("InvalidNodeStatus", f"{node.instance_id} is a Slurm controller: it cannot be deleted")
            self._clusters.remove(cluster, node)

        answer = _batch(cluster, request, delete)
        failed = [
            {
                "NodeId": item["NodeId"],
                "Code": _CODES.get(item["ErrorCode"], item["ErrorCode"]),
                "Message": item["Message"],
            }
            for item in answer["Failed"]
        ]
        return {**answer, "Failed": failed}

    def _find_settled(self, request: Mapping[str, Any]) -> EmulatedCluster:
        cluster = self._find(request)
        if not cluster.is_settled:
            raise AwsError("ConflictException", f"{cluster.arn} is {cluster.status}: wait until it is InService")
        return cluster

    def _find(self, request: Mapping[str, Any]) -> EmulatedCluster:
        cluster = self._clusters.find(request.get("ClusterName", ""))
        if cluster is None:
            raise AwsError("ResourceNotFound", f"Cluster with name {request.get('ClusterName')} not found")
        return cluster

    def _summary(self, node: ClusterNode) -> dict[str, Any]:
        return {
            "InstanceGroupName": node.group,
            "InstanceId": node.instance_id,
            "InstanceType": node.instance_type,
            "LaunchTime": node.launched_at,
            "InstanceStatus": {"Status": node.status, **({"Message": node.fault.message} if node.fault else {})},
            "PrivateDnsHostname": node.private_dns_hostname(self._region),
            "CurrentImageReleaseVersion": node.image_release,
            "ImageVersionStatus": _image_status(node.image_release),
            **({"LastSoftwareUpdateTime": node.updated_at} if node.updated_at else {}),
        }


def _group(cluster: EmulatedCluster, group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: group[key] for key in _DESCRIBED if key in group},
        **_of_other_names(cluster, group),
        "CurrentCount": len(cluster.nodes_of(group["InstanceGroupName"])),
        "TargetCount": group["InstanceCount"],
        "Status": cluster.status,
        **_software(cluster, group["InstanceGroupName"]),
    }


def _of_other_names(cluster: EmulatedCluster, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that DescribeCluster names otherwise than CreateCluster.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupDetails.html
    """
    described: dict[str, Any] = {}
    if kinds := group.get("InstanceRequirements", {}).get("InstanceTypes"):
        nodes = Counter(node.instance_type for node in cluster.nodes_of(group["InstanceGroupName"]))
        described["InstanceRequirements"] = {"CurrentInstanceTypes": kinds, "DesiredInstanceTypes": kinds}
        described["InstanceTypeDetails"] = [
            {"InstanceType": kind, "CurrentCount": count, "ThreadsPerCore": group.get("ThreadsPerCore", 1)}
            for kind, count in nodes.items()
        ]
    if image := group.get("ImageId"):
        described |= {"CurrentImageId": image, "DesiredImageId": image}
    if "MinInstanceCount" in group:
        described["MinCount"] = group["MinInstanceCount"]
    return described


def _software(cluster: EmulatedCluster, group: str) -> dict[str, Any]:
    """Return the oldest release on the group's nodes, and how the last update went."""
    nodes = cluster.nodes_of(group)
    if not nodes:
        return {}
    release = min((node.image_release for node in nodes), key=IMAGE_RELEASES.index)
    updated = any(node.updated_at for node in nodes)
    return {
        "CurrentImageReleaseVersion": release,
        "ImageVersionStatus": _image_status(release),
        **({"SoftwareUpdateStatus": "Succeeded" if cluster.is_settled else "InProgress"} if updated else {}),
    }


def _image_status(release: str) -> str:
    return "UpToDate" if release == IMAGE_RELEASES[-1] else "UpdateAvailable"


def _event(cluster: EmulatedCluster, event: ClusterEvent) -> dict[str, Any]:
    answer = {
        "EventId": event.event_id,
        "ClusterArn": cluster.arn,
        "ClusterName": cluster.name,
        "InstanceGroupName": event.group,
        "InstanceId": event.instance_id,
        "ResourceType": event.resource_type,
        "EventTime": event.at,
        "EventLevel": event.level,
        "Description": event.description,
    }
    return {key: value for key, value in answer.items() if value is not None}


def _nodes_to_check(cluster: EmulatedCluster, configuration: Mapping[str, Any]) -> list[ClusterNode]:
    """Return the nodes of one configuration of StartClusterHealthCheck."""
    name, checks = configuration["InstanceGroupName"], configuration["DeepHealthChecks"]
    if name not in {group["InstanceGroupName"] for group in cluster.model["InstanceGroups"]}:
        raise AwsError("ResourceNotFound", f"{cluster.name} has no instance group {name}")
    node_by_id = {node.instance_id: node for node in cluster.nodes_of(name)}
    instance_ids = configuration.get("InstanceIds") or list(node_by_id)
    if unknown := [instance_id for instance_id in instance_ids if instance_id not in node_by_id]:
        raise AwsError("ResourceNotFound", f"{name} has no instance {', '.join(unknown)}")
    if name in cluster.controller_groups:
        raise AwsError("ValidationException", f"{name} runs the Slurm controller: it has no deep health checks")
    if unsupported := set(checks) - CHECKS_OF_SLURM:
        raise AwsError("ValidationException", f"Clusters of Slurm have no check {', '.join(sorted(unsupported))}")
    if "InstanceConnectivity" in checks and len(set(instance_ids)) < MIN_CONNECTED_NODES:
        raise AwsError("ValidationException", f"InstanceConnectivity needs {MIN_CONNECTED_NODES} instances of {name}")
    nodes = [node_by_id[instance_id] for instance_id in instance_ids]
    if waiting := [f"{node.instance_id} is {node.status}" for node in nodes if node.status != "Running"]:
        raise AwsError("ValidationException", f"Only running instances are checked: {', '.join(waiting)}")
    return nodes


def _node(cluster: EmulatedCluster, instance_id: str, *, code: str) -> ClusterNode:
    for node in cluster.nodes:
        if node.instance_id == instance_id:
            return node
    raise AwsError(code, f"Instance {instance_id} is not a node of {cluster.name}")


def _page(key: str, items: list[dict[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return one page of a list; the token is the number of items on the pages before."""
    start = int(request.get("NextToken") or 0)
    end = start + min(request.get("MaxResults") or PAGE_SIZE, PAGE_SIZE)
    page: dict[str, Any] = {key: items[start:end]}
    return {**page, "NextToken": str(end)} if end < len(items) else page


def _batch(cluster: EmulatedCluster, request: Mapping[str, Any], act: Callable[[ClusterNode], None]) -> dict[str, Any]:
    """Apply an operation to each named node; a failure does not stop the others."""
    ids = request.get("NodeIds") or []
    if not 0 < len(ids) <= BATCH_SIZE:
        raise AwsError("ValidationException", f"NodeIds must name 1 to {BATCH_SIZE} nodes, not {len(ids)}")
    failures = {instance_id: _failure(cluster, instance_id, act) for instance_id in ids}
    return {
        "Successful": [instance_id for instance_id, failure in failures.items() if failure is None],
        "Failed": [failure for failure in failures.values() if failure is not None],
    }


def _failure(cluster: EmulatedCluster, instance_id: str, act: Callable[[ClusterNode], None]) -> dict[str, str] | None:
    try:
        act(_node(cluster, instance_id, code="InstanceIdNotFound"))
    except AwsError as error:
        return {"NodeId": instance_id, "ErrorCode": error.code, "Message": error.message}
    return None
