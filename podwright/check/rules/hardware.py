"""Rules about what nodes do with their hardware: disks, limits, Lustre's client, Neuron's tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from podwright.check.findings import Finding, error, warning
from podwright.check.rules.rule import compute_types
from podwright.settings.root import Settings
from podwright_constructs import facts

# Below, data loaders stop; above fs.nr_open, which Linux sets to 1048576, nobody could log in.
# https://docs.kernel.org/admin-guide/sysctl/fs.html
OPEN_FILES = (65536, 1048576)
NEIGHBOURS = (1024, 1048576)  # from Linux's default
DEBIAN_VERSION = re.compile(r"[0-9][A-Za-z0-9.+:~-]*")


def scratch_path(settings: Settings) -> Iterator[Finding]:
    """The scratch folder's path is not absolute."""
    scratch = settings.nodes.scratch
    if scratch is None:
        return
    path, given = ("nodes", "scratch", "mount_path"), PurePosixPath(scratch.mount_path)
    if not given.is_absolute() or given == PurePosixPath("/") or ".." in given.parts:
        yield error(path, f"mount_path cannot be {given}", "use an absolute path like /scratch")


def scratch_disks(settings: Settings) -> Iterator[Finding]:
    """No compute node has NVMe disks of its own, so none has the scratch folder."""
    if settings.nodes.scratch and not any(kind.nvme_disks for _, kind in compute_types(settings)):
        given = "no compute group has a type with NVMe disks: there is no scratch folder on any node"
        yield warning(("nodes", "scratch"), given, "choose types with disks (p5, g5, c6id …) or leave it out")


def node_limits(settings: Settings) -> Iterator[Finding]:
    """A limit is lower than what nodes have without it, or higher than what Linux grants."""
    limits = settings.nodes.limits
    if limits is None:
        return
    for word, (least, most) in (("open_files", OPEN_FILES), ("neigh_gc_thresh3", NEIGHBOURS)):
        if not least <= getattr(limits, word) <= most:
            given = f"{word} cannot be {getattr(limits, word)}"
            yield error(("nodes", "limits", word), given, f"use {least} to {most}, or leave it out")


def lustre_efa_connections(settings: Settings) -> Iterator[Finding]:
    """The nodes would have more EFA connections to the file system than it takes."""
    if not settings.lustre.efa:
        return
    from podwright_bootstrap.storage import lnet  # noqa: PLC0415 — half of the bootstrap, for a setting that few use

    wanted = sum(count * lnet.interfaces_of(kind.name, kind.efa_interfaces) for count, kind in compute_types(settings))
    most = facts.MAX_LUSTRE_EFA_CONNECTIONS
    if wanted > most:
        given = f"efa: the nodes would have {wanted} EFA connections, a file system takes {most}"
        yield error(("lustre", "efa"), given, "use fewer nodes, or `efa: false`")


def neuron_nodes(settings: Settings) -> Iterator[Finding]:
    """Neuron's tools are asked for where no node has Neuron (warning), or in a version that cannot be one (error)."""
    neuron = settings.nodes.neuron
    if neuron is None:
        return
    if not any(kind.accelerator == "neuron" for _, kind in compute_types(settings)):
        given = "no compute group has Trainium or Inferentia: there is nothing to set up"
        yield warning(("nodes", "neuron"), given, "leave it out")
    if neuron.tools_version is not None and not DEBIAN_VERSION.fullmatch(neuron.tools_version):
        given = f"tools_version cannot be {neuron.tools_version!r}"
        yield error(("nodes", "neuron", "tools_version"), given, "write it as apt does, like 2.28.23.0")
