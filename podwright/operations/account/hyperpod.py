"""A cluster, its instance groups and nodes, as SageMaker describes them.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeCluster.html
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from podwright.aws_session import Session
from podwright.errors import ArgumentError, AwsError, OperationError
from podwright_bootstrap.contract import COMPUTE, CONTROLLER, LOGIN, OWN_KEY, PROVISIONING_PARAMETERS_NAME
from podwright_common.similar_names import did_you_mean

WITHOUT_ADDRESS = {"Pending", "ShuttingDown", "NotFound"}  # statuses of a node
DESCRIBED_AT_A_TIME = 8
_FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]+")
_SLURM_NAME = re.compile(r"ip-(\d+)-(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True)
class InstanceGroup:
    """Nodes of one type.

    ``role`` is ``controller``, ``login`` or ``compute``; empty if neither the API nor the scripts' parameters name it.
    """

    name: str
    role: str
    partition: str
    instance_type: str
    current_count: int
    target_count: int
    status: str
    image_version: str
    image_status: str
    software_update_status: str
    execution_role_arn: str
    threads_per_core: int
    scripts_s3_uri: str
    training_plan_arn: str
    subnet_ids: tuple[str, ...]
    description: Mapping[str, Any] = field(repr=False, compare=False)  # the API's answer


@dataclass(frozen=True)
class Node:
    """One instance. ``index`` counts the group's nodes from 1, by private address."""

    group: str
    index: int
    role: str
    instance_id: str
    instance_type: str
    status: str
    message: str
    launched_at: datetime
    private_ip: str  # empty until the instance has one
    image_version: str
    image_status: str

    @property
    def slurm_name(self) -> str:
        """Slurm's name of it, ``ip-10-0-1-2``; empty until it has an address."""
        return f"ip-{self.private_ip.replace('.', '-')}" if self.private_ip else ""

    @property
    def name(self) -> str:
        """Slurm's name, or else the instance id."""
        return self.slurm_name or self.instance_id

    @property
    def is_controller(self) -> bool:
        """True if it runs slurmctld."""
        return self.role == CONTROLLER


@dataclass(frozen=True)
class Cluster:
    """One HyperPod cluster on Slurm."""

    name: str
    arn: str
    region: str
    status: str
    failure_message: str
    created_at: datetime
    node_recovery: str
    node_provisioning_mode: str
    subnet_ids: tuple[str, ...]
    security_group_ids: tuple[str, ...]
    groups: tuple[InstanceGroup, ...]
    file_system_ids: tuple[str, ...]  # that its nodes mount, as far as the API or the scripts' parameters name them
    description: Mapping[str, Any] = field(repr=False, compare=False)  # the API's answer

    @property
    def id(self) -> str:
        """The last part of its ARN, which SSM's targets and log groups have."""
        return self.arn.rpartition("/")[2]

    @property
    def log_group(self) -> str:
        """The CloudWatch log group that SageMaker writes lifecycle logs to."""
        return f"/aws/sagemaker/Clusters/{self.name}/{self.id}"

    def group(self, name: str) -> InstanceGroup:
        """Return the instance group of this name.

        Raises:
            ArgumentError: there is none; the message lists all.
        """
        for group in self.groups:
            if group.name == name:
                return group
        raise ArgumentError(
            f"{self.name} has no instance group {name!r}", suggestion(name, [group.name for group in self.groups])
        )

    def session_target(self, node: Node) -> str:
        """Return the target of ``aws ssm start-session`` for a node.

        https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-access-nodes.html
        """
        return f"sagemaker-cluster:{self.id}_{node.group}-{node.instance_id}"


def find(session: Session, name: str) -> Cluster:
    """Describe a cluster.

    Args:
        session: the account and region.
        name: the cluster's name or ARN.

    Raises:
        ArgumentError: there is no such cluster; the message lists those of the region.
        AwsError: AWS refuses or does not answer.
    """
    try:
        answer = session.call("sagemaker", "describe_cluster", ClusterName=name)
    except AwsError as error:
        if error.absent:
            raise unknown(session, name) from error
        raise
    return described(session, answer)


def described(session: Session, answer: Mapping[str, Any]) -> Cluster:
    """Return the cluster of an answer of DescribeCluster; reads the parameters beside its scripts.

    Raises:
        AwsError: as ``find``.
    """
    network = answer.get("VpcConfig", {})
    groups = answer["InstanceGroups"]
    parameters = provisioning_parameters(session, groups)
    return Cluster(
        name=answer.get("ClusterName", answer["ClusterArn"]),
        arn=answer["ClusterArn"],
        region=session.region,
        status=answer["ClusterStatus"],
        failure_message=" ".join(answer.get("FailureMessage", "").split()),
        created_at=answer["CreationTime"],
        node_recovery=answer.get("NodeRecovery", ""),
        node_provisioning_mode=answer.get("NodeProvisioningMode", ""),
        subnet_ids=tuple(network.get("Subnets", ())),
        security_group_ids=tuple(network.get("SecurityGroupIds", ())),
        groups=tuple(_groups(groups, parameters)),
        file_system_ids=tuple(_file_systems(groups, parameters)),
        description=answer,
    )


def names(session: Session) -> list[str]:
    """Return the names of the region's clusters.

    Raises:
        AwsError: as ``find``.
    """
    return [item["ClusterName"] for item in session.items("sagemaker", "list_clusters", "ClusterSummaries")]


def unknown(session: Session, name: str) -> ArgumentError:
    """Return the error for a cluster that does not exist, with the closest names or all."""
    try:
        existing = names(session)
    except AwsError as error:
        return ArgumentError(f"no cluster {name!r} in {session.region}", f"AWS did not list its clusters: {error}")
    hint = suggestion(name, existing) if existing else "it has no clusters: compare --region and --profile"
    return ArgumentError(f"no cluster {name!r} in {session.region}", hint)


def nodes(session: Session, cluster: Cluster) -> tuple[Node, ...]:
    """List all nodes of a cluster, in the order of groups and private addresses.

    Raises:
        AwsError: as ``find``.
    """
    summaries = session.items("sagemaker", "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster.arn)
    roles = {group.name: group.role for group in cluster.groups}
    listed = [_node(item, roles) for item in summaries]
    order = {group.name: number for number, group in enumerate(cluster.groups)}
    listed = sorted(
        _with_addresses(session, cluster, listed), key=lambda node: (order.get(node.group, 0), *_place(node))
    )
    return tuple(
        replace(node, index=index)
        for _, members in groupby(listed, key=lambda node: node.group)
        for index, node in enumerate(members, start=1)
    )


def select(cluster: Cluster, existing: Iterable[Node], names: Iterable[str]) -> tuple[Node, ...]:
    """Return the nodes that arguments name, each once.

    Args:
        cluster: their cluster.
        existing: its nodes.
        names: Slurm names, instance ids, private addresses, ``group/index``, or ``controller``.

    Raises:
        ArgumentError: a word names no node; the message has every such word and the closest names.
    """
    selected: dict[str, Node] = {}
    wrong: list[str] = []
    existing = tuple(existing)
    for word in names:
        node = next((node for node in existing if word in _names_of(node)), None)
        if node is None and word == CONTROLLER:
            node = next((node for node in existing if node.is_controller), None)
        if node is None:
            wrong.append(word)
        else:
            selected[node.instance_id] = node
    if wrong:
        existing_names = [name for node in existing for name in _names_of(node)]
        hints = [suggestion(word, existing_names, otherwise="`podwright nodes list` shows them") for word in wrong]
        unknown_words = " and ".join(repr(word) for word in wrong)
        raise ArgumentError(f"{cluster.name} has no node {unknown_words}", "; ".join(dict.fromkeys(hints)))
    return tuple(selected.values())


def suggestion(name: str, existing: list[str], *, otherwise: str = "") -> str:
    """Return a hint for an unknown name: the closest name, else ``otherwise`` or all names."""
    return did_you_mean(name, existing) or otherwise or f"there is {', '.join(existing)}"


def _names_of(node: Node) -> set[str]:
    """Return all words that name a node."""
    return {node.instance_id, node.slurm_name, node.private_ip, f"{node.group}/{node.index}"} - {""}


def _groups(answers: Iterable[Mapping[str, Any]], parameters: Mapping[str, Any]) -> Iterator[InstanceGroup]:
    parts = _slurm_parts(answers, parameters)
    for answer in answers:
        role, partition = parts.get(answer["InstanceGroupName"], ("", ""))
        types = [
            answer.get("InstanceType", ""),
            *(item["InstanceType"] for item in answer.get("InstanceTypeDetails", ())),
        ]
        yield InstanceGroup(
            name=answer["InstanceGroupName"],
            role=role,
            partition=partition,
            instance_type=next(filter(None, types), ""),
            current_count=answer.get("CurrentCount", 0),
            target_count=answer.get("TargetCount", 0),
            status=answer.get("Status", ""),
            image_version=answer.get("CurrentImageReleaseVersion", ""),
            image_status=answer.get("ImageVersionStatus", ""),
            software_update_status=answer.get("SoftwareUpdateStatus", ""),
            execution_role_arn=answer.get("ExecutionRole", ""),
            threads_per_core=answer.get("ThreadsPerCore", 1),
            scripts_s3_uri=answer.get("LifeCycleConfig", {}).get("SourceS3Uri", ""),
            training_plan_arn=answer.get("TrainingPlanArn", ""),
            subnet_ids=tuple(answer.get("OverrideVpcConfig", {}).get("Subnets", ())),
            description=answer,
        )


def _slurm_parts(answers: Iterable[Mapping[str, Any]], parameters: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return role and partition by group: from the API, else from the parameters beside the lifecycle scripts."""
    slurm_configs = {item["InstanceGroupName"]: item["SlurmConfig"] for item in answers if item.get("SlurmConfig")}
    if slurm_configs:
        return {
            name: (config["NodeType"].lower(), ",".join(config.get("PartitionNames", ())))
            for name, config in slurm_configs.items()
        }
    workers = parameters.get("worker_groups")
    parts = {
        str(item.get("instance_group_name")): (COMPUTE, str(item.get("partition_name") or ""))
        for item in (workers if isinstance(workers, list) else ())
        if isinstance(item, dict)  # somebody else wrote the file
    }
    own_parameters = parameters.get(OWN_KEY)
    more = own_parameters.get("more_login_groups") if isinstance(own_parameters, dict) else None
    logins = [parameters.get("login_group"), *(more if isinstance(more, list) else ())]
    parts.update({str(name): (LOGIN, "") for name in logins})
    parts[str(parameters.get("controller_group"))] = (CONTROLLER, "")
    return parts


def _file_systems(answers: Iterable[Mapping[str, Any]], parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of file systems, each once, from their DNS names in the API's answer or the parameters."""
    storage = [config for item in answers for config in item.get("InstanceStorageConfigs", ())]
    dns_names = [
        *(config[kind]["DnsName"] for config in storage for kind in config if "DnsName" in config[kind]),
        *(str(parameters.get(key) or "") for key in ("fsx_dns_name", "fsx_openzfs_dns_name")),
    ]
    matches = [_FILE_SYSTEM_ID.match(name) for name in dns_names]
    yield from dict.fromkeys(match[0] for match in matches if match)


def provisioning_parameters(session: Session, answers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Read provisioning_parameters.json; empty where it is missing, unreadable or not a JSON object."""
    script_uris = (item.get("LifeCycleConfig", {}).get("SourceS3Uri") for item in answers)
    scripts: str = next(filter(None, script_uris), "")
    bucket, _, prefix = scripts.removeprefix("s3://").partition("/")
    if not bucket:
        return {}
    key = "/".join(filter(None, [prefix.strip("/"), PROVISIONING_PARAMETERS_NAME]))
    try:
        with session.translated("s3"):
            body = session.call("s3", "get_object", Bucket=bucket, Key=key)["Body"].read()
        parameters = json.loads(body)
    except (OperationError, ValueError):
        return {}
    return parameters if isinstance(parameters, dict) else {}


def _node(answer: Mapping[str, Any], roles: Mapping[str, str]) -> Node:
    """Return a node without its index; also its address where SageMaker gives the host name."""
    return Node(
        group=answer["InstanceGroupName"],
        index=0,
        role=roles.get(answer["InstanceGroupName"], ""),
        instance_id=answer["InstanceId"],
        instance_type=answer["InstanceType"],
        status=answer["InstanceStatus"]["Status"],
        message=" ".join(answer["InstanceStatus"].get("Message", "").split()),
        launched_at=answer["LaunchTime"],
        private_ip=_address(answer.get("PrivateDnsHostname", "")),
        image_version=answer.get("CurrentImageReleaseVersion", ""),
        image_status=answer.get("ImageVersionStatus", ""),
    )


def _address(host_name: str) -> str:
    match = _SLURM_NAME.match(host_name)
    return ".".join(match.groups()) if match else ""


def _with_addresses(session: Session, cluster: Cluster, listed: list[Node]) -> Iterator[Node]:
    """Yield the nodes; describe those whose host name was not listed, several at a time."""

    def complete(node: Node) -> Node:
        if node.private_ip or node.status in WITHOUT_ADDRESS:
            return node
        try:
            answer = session.call(
                "sagemaker", "describe_cluster_node", ClusterName=cluster.arn, NodeId=node.instance_id
            )
        except AwsError as error:
            if error.absent or error.denied:  # replaced since it was listed, or unknown for want of rights
                return node
            raise
        return replace(node, private_ip=answer["NodeDetails"].get("PrivatePrimaryIp", ""))

    with ThreadPoolExecutor(DESCRIBED_AT_A_TIME) as executor:
        yield from executor.map(complete, listed)


def _place(node: Node) -> tuple[int, str]:
    """Order nodes by address; those without one come last."""
    address = int(ipaddress.ip_address(node.private_ip)) if node.private_ip else 1 << 32
    return address, node.instance_id
