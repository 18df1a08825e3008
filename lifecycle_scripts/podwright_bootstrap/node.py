"""Identify this host: its address, found in the service's file, gives its instance group and so its role.

Requests of all hosts to a shared service are spread over ``Node.turn_s`` and repeated every ``Node.poll_s``, so that a
large cluster asks no more often than one of 100 hosts. Each host does a constant amount of I/O, except for reading the
service's list of instances, which grows with the cluster.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import COMPUTE, CONTROLLER, LOGIN, InstanceFacts, ProvisioningParameters
from podwright_bootstrap.host import log, network, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError

IDENTITY_LIMIT_S = 300
# How many hosts a second may ask a service that all of them share. A boot is some 70 operations on the shared file
# system; bench/scale.py: with the smallest metadata server, no operation of 5,000 hosts waits as long as four seconds.
HOSTS_PER_S = 100
POLL_S = 2.0


@dataclass(frozen=True)
class Node:
    """One host of the cluster and its parameters."""

    parameters: ProvisioningParameters
    hostname: str
    address: str
    instance_id: str
    instance_group: str
    instance_type: str
    role: str  # CONTROLLER | LOGIN | COMPUTE
    cluster_arn: str
    controllers: tuple[str, ...]  # addresses
    controller_ids: tuple[str, ...] = ()  # their instances
    hosts: int = 1  # number of the cluster's hosts, with this one

    @property
    def turn_s(self) -> float:
        """Seconds over which all hosts spread a task that each does once: 1 for 100 hosts, 50 for 5,000."""
        return self.hosts / HOSTS_PER_S

    @property
    def poll_s(self) -> float:
        """Seconds between two questions of this host to a shared service, so that N hosts ask no more than 100 do."""
        return max(POLL_S, self.turn_s)

    @property
    def partition(self) -> str | None:
        """The Slurm partition of the node's group."""
        groups = {group.instance_group_name: group.partition_name for group in self.parameters.worker_groups}
        return groups.get(self.instance_group)

    @property
    def facts(self) -> InstanceFacts:
        """Return the hardware of the instance type, from the catalog."""
        return self.parameters.facts_of(self.instance_group)

    @property
    def mount_path(self) -> Path:
        """Return the mount path of the shared file system."""
        return Path(self.parameters.lustre_mount_path)

    @property
    def has_shared(self) -> bool:
        """Return whether the cluster has a shared file system."""
        return self.parameters.fsx_dns_name is not None

    def shared(self, folder: str) -> Path:
        """A folder of the contract on the shared file system."""
        return self.mount_path / folder

    @property
    def homes(self) -> Path:
        """The folder that contains the homes of users: on a file system that all nodes mount, if there is one."""
        if self.parameters.fsx_openzfs_dns_name is not None:
            return Path(self.parameters.openzfs_mount_path)
        return self.shared(contract.HOMES_DIRECTORY) if self.has_shared else Path("/home")

    @property
    def scratch(self) -> Path | None:
        """The folder on the node's own NVMe disks, if the cluster wants one and the type has disks."""
        settings = self.parameters.nodes.scratch
        return Path(settings.mount_path) if settings and self.facts.nvme_disks else None

    @property
    def environment(self) -> Path | None:
        """The virtual environment that jobs run in, if the cluster trains.

        Nodes that run no jobs may have another Python: they follow the link of their machine, x86_64 or aarch64.
        """
        if not self.has_shared or not self.parameters.training:
            return None
        name = self.parameters.training.environment_name()
        folder = self.shared(contract.ENVIRONMENTS_DIRECTORY)
        return folder / (name if self.role == COMPUTE else contract.CURRENT_ENVIRONMENT)


def identify(parameters: ProvisioningParameters) -> Node:
    """Find this host in the service's resource config, waiting for the file and the entry.

    Raises:
        BootstrapError: neither came in time, or the host's group has no role in the contract. An address that
            was not found is never replaced by a guess.
    """
    path = Path(os.environ.get(contract.RESOURCE_CONFIG_VARIABLE) or contract.RESOURCE_CONFIG)
    instances: list[Instance] = []
    host_addresses: set[str] = set()

    def is_listed() -> bool:
        instances[:] = read_instances(path)
        try:
            host_addresses.update(own_addresses())
        except CommandError as error:
            log.say(f"this host's addresses: {error}")
        return any(instance.address in host_addresses for instance in instances)

    try:
        waits.wait_until(is_listed, event=f"this host's entry in {path}", limit_s=IDENTITY_LIMIT_S)
    except BootstrapError as error:
        listed = (
            f"lists {_names([instance.address for instance in instances])}"
            if instances
            else "does not exist or lists no instance"
        )
        raise BootstrapError(
            f"{error}: the host's addresses are {_names(host_addresses)}, the file {listed}",
            hint="let HyperPod replace the node; if it happens again, ask AWS support with both lists",
        ) from error
    me = next(instance for instance in instances if instance.address in host_addresses)
    return Node(
        parameters=parameters,
        hostname=socket.gethostname().split(".")[0],
        address=me.address,
        instance_id=me.instance_id,
        instance_group=me.group,
        instance_type=me.instance_type,
        role=role_of(me.group, parameters),
        cluster_arn=_text(_read_json(path).get("ClusterConfig"), "ClusterArn"),
        controllers=tuple(i.address for i in instances if i.group == parameters.controller_group),
        controller_ids=tuple(i.instance_id for i in instances if i.group == parameters.controller_group),
        hosts=len(instances),
    )


@dataclass(frozen=True)
class Instance:
    """One entry of the resource config."""

    group: str
    instance_type: str
    instance_id: str
    address: str


def read_instances(path: Path) -> list[Instance]:
    """Return all instances of the resource config; empty while the file is missing or half-written."""
    return [
        Instance(
            group=_text(group, "Name"),
            instance_type=_text(group, "InstanceType"),
            instance_id=_text(instance, "InstanceId"),
            address=_text(instance, "CustomerIpAddress"),
        )
        for group in _objects(_read_json(path), "InstanceGroups")
        for instance in _objects(group, "Instances")  # the service writes null for a group without any
    ]


def role_of(group: str, parameters: ProvisioningParameters) -> str:
    """Return the instance group's role in the contract; ``BootstrapError`` if it has no role."""
    workers = [worker.instance_group_name for worker in parameters.worker_groups]
    roles = dict.fromkeys(workers, COMPUTE)
    roles.update(dict.fromkeys(parameters.login_groups, LOGIN))
    roles[parameters.controller_group] = CONTROLLER
    if group not in roles:
        raise BootstrapError(
            f"instance group {group!r} has no role in {contract.PROVISIONING_PARAMETERS_NAME}: controller "
            f"{parameters.controller_group!r}, login {_names(parameters.login_groups)}, workers {_names(workers)}",
            hint="deploy the cluster stack again, so that the groups' names agree",
        )
    return roles[group]


def own_addresses() -> set[str]:
    """The host's IPv4 addresses but the loopback's."""
    return {address for address in network.interfaces() if not address.startswith("127.")}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _objects(content: Dict[str, Any], key: str) -> List[Dict[str, Any]]:
    """Return the objects of a list; empty if the value is not a list."""
    items = content.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _text(content: Any, key: str) -> str:
    """Return a printable text; "" where something else is written."""
    value = content.get(key) if isinstance(content, dict) else ""
    return value if isinstance(value, str) and value.isprintable() else ""


def _names(items: Iterable[str]) -> str:
    return ", ".join(sorted(items)) or "none"
