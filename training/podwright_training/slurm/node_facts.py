"""Facts of the compute nodes, as the bootstrap recorded them.

They come from ``/opt/podwright/node.json``; on a login or controller node, those of the compute nodes come from
``provisioning_parameters.json``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from podwright_training import neuron
from podwright_training.errors import LaunchError

# Both are written by the bootstrap, whose contract module owns paths and keys; a test compares them.
NODE_JSON = Path("/opt/podwright/node.json")
PROVISIONING_PARAMETERS = Path("/opt/ml/config/provisioning_parameters.json")
# HyperPod writes it where it sets Slurm up itself.
API_PARAMETERS = PROVISIONING_PARAMETERS.with_name("podwright_parameters.json")
HYPERPOD_MARK = Path("/opt/sagemaker_cluster")  # exists on every HyperPod node, with our bootstrap or without
# Reading a torn file raises one of these.
DAMAGED = (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Known facts of the compute nodes."""

    partition: str | None = None
    accelerator: str = ""
    accelerators_per_node: int = 0
    accelerator_name: str = ""  # "A10G", "Trainium2", …
    efa_interfaces: int = 0
    environment: str | None = None
    shared_root: str = ""
    hyperpod: bool = False

    @property
    def ranks_per_node(self) -> int:
        """Return the ranks of a node: one for each GPU, or for each core that programs see of a Neuron device."""
        cores = neuron.ranks_per_device(self.accelerator_name) if self.accelerator == "neuron" else 1
        return self.accelerators_per_node * cores


def read_nodes(partition: str | None, node_json: Path, provisioning_parameters: Path) -> NodeFacts:
    """Return the bootstrap's record of the nodes of ``partition``; empty on plain Slurm.

    Raises:
        LaunchError: There are several partitions to choose from, no partition has that name, or a file is damaged.
    """
    if not node_json.exists():
        return NodeFacts(hyperpod=HYPERPOD_MARK.exists())
    try:
        nodes = _recorded(partition, node_json, provisioning_parameters)
    except LaunchError:
        raise
    except DAMAGED as error:
        raise LaunchError(
            f"{node_json} or {provisioning_parameters} is damaged ({type(error).__name__}: {error}); let an "
            "administrator boot this node again"
        ) from error
    types = get_type_hints(NodeFacts)
    for name, value in vars(nodes).items():
        if not isinstance(value, types[name]) or (isinstance(value, str) and not value.isprintable()):
            printed = textwrap.shorten(ascii(value), 60, placeholder=" …")
            raise LaunchError(f"{node_json}: {name}: got {printed}; let an administrator boot this node again")
    return nodes


def _recorded(partition: str | None, node_json: Path, provisioning_parameters: Path) -> NodeFacts:
    record = json.loads(node_json.read_text())
    group, facts = record["partition"], record
    if record["role"] != "compute" or partition not in (None, record["partition"]):
        group, facts = _worker_group(partition, json.loads(provisioning_parameters.read_text()))
    return NodeFacts(
        partition=group,
        accelerator=facts["accelerator"],
        accelerators_per_node=facts["accelerators_per_node"],
        accelerator_name=facts["accelerator_name"],
        efa_interfaces=facts["efa_interfaces"],
        environment=record["environment"],
        shared_root=record["shared_root"],
        hyperpod=bool(record["cluster_arn"]),
    )


def _worker_group(partition: str | None, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return partition and instance facts of the worker group of ``partition``."""
    groups = {group["partition_name"]: group["instance_group_name"] for group in parameters["worker_groups"]}
    if not groups:
        raise LaunchError("this cluster has no compute nodes")
    if partition is None and len(groups) > 1:
        raise LaunchError(f"--partition is required, one of {', '.join(sorted(groups))}")
    name = partition or next(iter(groups))
    if name not in groups:
        raise LaunchError(f"--partition: got {name}, need one of {', '.join(sorted(groups))}")
    return name, parameters["podwright"]["instance_facts"][groups[name]]
