"""The parts of a cluster that hosts of a rehearsal cannot have, because they have no internet.

Terraform deploys them all the same. Only what hosts get as their parameters is without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from podwright.settings.operations import DatabaseAccounting
from podwright.settings.root import Settings
from podwright_bootstrap.contract import Accounting, ProvisioningParameters
from podwright_bootstrap.features import NodeFeatures

OWN_DATABASE = Accounting(endpoint="", port=3306, secret_arn="")


def parts(settings: Settings) -> list[str]:
    """Return lines with each key of cluster.yaml that the rehearsal leaves out, and the hosts' replacement."""
    lines = list(_features(settings.nodes.features()))
    if isinstance(settings.accounting, DatabaseAccounting):
        lines.insert(0, "accounting: MariaDB on each controller stands in for the database")
    return lines


def without(parameters: ProvisioningParameters) -> ProvisioningParameters:
    """Return the parameters without features that hosts cannot have."""
    nodes, accounting = parameters.nodes, parameters.accounting
    return replace(
        parameters,
        accounting=OWN_DATABASE if accounting and accounting.endpoint else accounting,
        nodes=replace(
            nodes,
            ldap=None,
            s3_mounts=(),
            containers=None,
            observability=None,
            downloads=None,
            neuron=replace(nodes.neuron, tools_version=None) if nodes.neuron else None,
        ),
    )


def _features(nodes: NodeFeatures) -> Iterator[str]:
    if nodes.ldap:
        yield f"nodes.ldap: hosts cannot reach {nodes.ldap.uri}, and do not know its users"
    if nodes.s3_mounts:
        paths = ", ".join(mount.path for mount in nodes.s3_mounts)
        yield f"nodes.s3_mounts: hosts cannot download mount-s3, and have no {paths}"
    if nodes.containers:
        yield "nodes.containers: hosts cannot install Docker and Enroot, and run jobs without containers"
    if nodes.observability:
        yield "nodes.observability: hosts cannot download node_exporter, and send no metrics"
    if nodes.neuron and nodes.neuron.tools_version:
        yield "nodes.neuron.tools_version: hosts keep the version of their image"
    if nodes.downloads:
        yield "nodes.downloads: the emulated bucket has no bundle; this machine's wheels are used"
