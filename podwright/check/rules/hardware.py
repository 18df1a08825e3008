"""Rules about the nodes' hardware: disks, limits, EFA to Lustre, Neuron."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from podwright.check.findings import Finding, KeyPath, error, findings_of, warning
from podwright.check.rules.rule import GROUPS, compute_types, for_each_group, reads, reads_compute_groups
from podwright.settings.cluster import InstanceGroupSection
from podwright.settings.root import Settings
from podwright_constructs import checks, facts
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError

# Below, data loaders stop; above fs.nr_open, which Linux sets to 1048576, nobody could log in.
# https://docs.kernel.org/admin-guide/sysctl/fs.html
OPEN_FILES = (65536, 1048576)
HUGE_PAGES = (1, 65536)  # Pages of 2 MiB, together at most 128 GiB.
NEIGHBOURS = (1024, 1048576)  # Linux's default is the smallest.
GROUP_KEYS = "cluster.instance_groups"
ULTRASERVERS = "ml.p6e-"
GRACE = "aarch64"  # its processor, as ``uname -m`` calls it
DEBIAN_VERSION = re.compile(r"[0-9][A-Za-z0-9.+:~-]*")


def scratch_path(settings: Settings) -> Iterator[Finding]:
    """The scratch folder's path is not absolute, or it hides a folder of the system."""
    if settings.nodes.scratch:
        problems = checks.mount_path_problems(settings.nodes.scratch.mount_path)
        yield from findings_of(("nodes", "scratch"), problems)


@reads_compute_groups("instance_type")
def scratch_disks(settings: Settings) -> Iterator[Finding]:
    """No compute node has NVMe disks of its own, so there is no scratch folder."""
    if settings.nodes.scratch and not any(kind.nvme_disks for _, kind in compute_types(settings)):
        message = "scratch: no compute group has a type with NVMe disks, so no node has a scratch folder"
        yield warning(("nodes", "scratch"), message, "use types with disks (p5, g5, c6id …), or delete the section")


def node_limits(settings: Settings) -> Iterator[Finding]:
    """A limit is lower than the nodes' own default, or higher than Linux allows."""
    limits = settings.nodes.limits
    if limits is None:
        return
    for word, (minimum, maximum) in (("open_files", OPEN_FILES), ("neigh_gc_thresh3", NEIGHBOURS)):
        if not minimum <= getattr(limits, word) <= maximum:
            message = f"{word}: got {getattr(limits, word)}, need {minimum} to {maximum}"
            yield error(("nodes", "limits", word), message, "delete the line for the default")


@reads_compute_groups("instance_type", "count")
def lustre_efa_connections(settings: Settings) -> Iterator[Finding]:
    """The nodes would have more EFA connections to the file system than it takes (error), or none (warning).

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html
    """
    if not settings.lustre.efa:
        return
    from podwright_bootstrap.storage import lnet  # noqa: PLC0415 — half of the bootstrap, for a setting that few use

    kinds = {kind.name: kind for _, kind in compute_types(settings)}
    if kinds and not any(lnet.interfaces_of(name, kind.efa_interfaces) for name, kind in kinds.items()):
        message = f"efa: no node uses it: Lustre over EFA does not work on {' or '.join(sorted(kinds))}"
        yield warning(("lustre", "efa"), message, "use types such as ml.p5.48xlarge, or `efa: false`")
    connections = sum(
        count * lnet.interfaces_of(kind.name, kind.efa_interfaces) for count, kind in compute_types(settings)
    )
    max_connections = facts.MAX_LUSTRE_EFA_CONNECTIONS
    if connections > max_connections:
        message = f"efa: the nodes would have {connections} EFA connections, a file system takes {max_connections}"
        yield error(("lustre", "efa"), message, "use fewer nodes, or `efa: false`")


@for_each_group("role", "name", "instance_type")
def ultraserver_nodes(group: InstanceGroupSection, path: KeyPath) -> Iterator[Finding]:
    """Nodes are parts of an UltraServer, whose NVLink between nodes needs IMEX, which podwright does not set up.

    Each job needs nvidia-imex with the addresses of its nodes. AWS publishes no number of EFA interfaces for the type,
    so neither the boot's check nor podwright-train counts on EFA.
    https://docs.aws.amazon.com/pcs/latest/userguide/capacity-blocks-nvidia-imex.html
    """
    if group.role == "compute" and _of_ultraserver(group):
        yield warning(
            (*path, "instance_type"),
            f"{group.instance_type}: podwright neither starts IMEX, without which NVLink ends at the node, nor knows "
            "the number of EFA interfaces",
            "let a script of `nodes.hooks` put AWS's prolog for IMEX into /opt/podwright/prolog.d, with "
            "`prolog: {}`; use groups of 9 or 18 nodes, and launch with --efa",
        )


@reads(f"{GROUP_KEYS}.role", f"{GROUP_KEYS}.instance_type", f"{GROUP_KEYS}.training_plan_arn")
def ultraserver_capacity(settings: Settings) -> Iterator[Finding]:
    """Nodes of an UltraServer have no training plan, or no controller with their processor.

    AWS rents the type as whole UltraServers, reserved in advance. Its nodes have Grace, an arm64 processor: podwright
    builds the training program on compute nodes for their processor, so an x86_64 controller has none to submit runs.
    https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html
    """
    groups = list(enumerate(settings.cluster.instance_groups))
    parts = [(index, group) for index, group in groups if _of_ultraserver(group)]
    for index, group in parts:
        if group.training_plan_arn is None:
            message = (
                f"{group.instance_type}: AWS rents whole UltraServers in training plans, and the group has no plan"
            )
            hint = "`podwright capacity` finds one: write its ARN as training_plan_arn"
            yield warning((*GROUPS, index, "instance_type"), message, hint)
    for index, group in groups if any(part.role == "compute" for _, part in parts) else ():
        with suppress(UnknownInstanceTypeError):
            kind = InstanceType.of(group.instance_type)
            if group.role == "controller" and kind.machine != GRACE:
                message = (
                    f"{group.instance_type} has {kind.machine} processors, and {parts[0][1].instance_type} {GRACE}: "
                    "the controller gets no training program to submit runs with"
                )
                yield warning((*GROUPS, index, "instance_type"), message, "use an arm64 type, such as ml.c7g.4xlarge")


def _of_ultraserver(group: InstanceGroupSection) -> bool:
    return group.instance_type.startswith(ULTRASERVERS)


def trainium_nodes(settings: Settings) -> Iterator[Finding]:
    """Nodes have Trainium, and their driver is not checked, or native PyTorch has no wheels for their image."""
    for index, group in enumerate(settings.cluster.instance_groups):
        kind = _neuron_type(group)
        if kind is None:
            continue
        type_path = (*GROUPS, index, "instance_type")
        if settings.nodes.neuron is None and settings.are_valid("nodes.neuron"):
            message = f"{group.instance_type}: driver and tools of Neuron are not checked, port 41000 is not reserved"
            yield warning(type_path, message, "add `nodes: {neuron: {}}`")
        needs_containers = settings.nodes.containers is None and settings.are_valid("nodes.containers")
        if kind.accelerator_name != "Trainium" and needs_containers:
            message = (
                f"{group.instance_type}: TorchNeuron has wheels for Ubuntu 26.04, HyperPod's image is Ubuntu 22.04"
            )
            yield warning(type_path, message, "add `nodes: {containers: {}}` and train in AWS's container")


def _neuron_type(group: InstanceGroupSection) -> InstanceType | None:
    """Return a compute group's instance type if it has Neuron devices."""
    if group.role != "compute":
        return None
    with suppress(UnknownInstanceTypeError):
        kind = InstanceType.of(group.instance_type)
        return kind if kind.accelerator == "neuron" else None
    return None


def neuron_nodes(settings: Settings) -> Iterator[Finding]:
    """No node has Neuron (warning), or the version of its tools or the number of huge pages is wrong (error)."""
    neuron = settings.nodes.neuron
    if neuron is None:
        return
    yield from _unused_neuron(settings)
    if neuron.tools_version is not None and not DEBIAN_VERSION.fullmatch(neuron.tools_version):
        message = f"tools_version: got {neuron.tools_version!r}, need a version like 2.28.23.0"
        yield error(("nodes", "neuron", "tools_version"), message, "`apt list -a aws-neuronx-tools` lists versions")
    minimum, maximum = HUGE_PAGES
    if neuron.huge_pages is not None and not minimum <= neuron.huge_pages <= maximum:
        message = f"huge_pages: got {neuron.huge_pages}, need {minimum} to {maximum}"
        yield error(("nodes", "neuron", "huge_pages"), message, "delete the line for the image's number")


@reads_compute_groups("instance_type")
def _unused_neuron(settings: Settings) -> Iterator[Finding]:
    if not any(kind.accelerator == "neuron" for _, kind in compute_types(settings)):
        message = "neuron: no compute group has Trainium or Inferentia"
        yield warning(("nodes", "neuron"), message, "delete the section")
