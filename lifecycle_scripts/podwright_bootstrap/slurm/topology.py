"""The network topology that HyperPod writes for Slurm: complete the files that come out empty, and number ranks by it.

Since April 2026 HyperPod chooses TopologyPlugin and writes topology.conf or topology.yaml. For instance types without a
topology the files are empty: slurmctld 24.11 then refuses every job, and 25.11 does not start. A file that names a
topology is never changed.

https://slurm.schedmd.com/topology.yaml.html
https://slurm.schedmd.com/slurm.conf.html#OPT_TopologyParam
https://aws.amazon.com/about-aws/whats-new/2026/04/amazon-sagemaker-hyperpod-automatic-slurm-topology/
"""

from __future__ import annotations

import re
import time
from typing import Dict, Iterator, List

from podwright_bootstrap.slurm import slurm_conf
from podwright_bootstrap.slurm.slurm_conf import FOLDER, SLURM_CONF

TOPOLOGY_CONF = FOLDER / "topology.conf"
TOPOLOGY_YAML = FOLDER / "topology.yaml"  # Slurm 25.05 and newer; topology.conf is then ignored.
FLAT_HEAD = "# Written by podwright: the service's file named no topology, with which slurmctld does not start.\n"
FLAT_ENTRY = "- topology: {name}\n  cluster_default: {is_default}\n  flat: true\n"
WRITTEN_WITHIN_S = 5
PLUGIN, PARAMETERS = "TopologyPlugin", "TopologyParam"
# Neighbouring ranks are on nodes of one leaf or block; Slurm before 26.05 numbers tasks by host name.
RANK_ORDER = {"topology/tree": "SwitchAsNodeRank", "topology/block": "BlockAsNodeRank"}


def complete(*, is_running: bool) -> Iterator[str]:
    """Repair files with which slurmctld does not start: a partition's empty Topology=, a topology.yaml without one.

    The flat topology has the names that partitions use, too. The service's file stays beside it. While slurmctld runs,
    a file that has just been written is left alone: its writer may not be done, and its next change is noticed.
    """
    conf = SLURM_CONF.read_text()
    new_conf = re.sub(r"(?im)^([ \t]*(?:PartitionName|NodeName)=.*?)[ \t]+Topology=(?=[ \t]|$)", r"\1", conf)
    if new_conf != conf and slurm_conf.write(SLURM_CONF, new_conf):
        yield f"removed Topology= without a name from {SLURM_CONF}"
    text = TOPOLOGY_YAML.read_text(errors="replace") if TOPOLOGY_YAML.exists() else ""
    if not TOPOLOGY_YAML.exists() or _has_key(text, "topology"):
        return
    if is_running and time.time() - TOPOLOGY_YAML.stat().st_mtime < WRITTEN_WITHIN_S:
        return
    slurm_conf.write(TOPOLOGY_YAML.with_name(f".{TOPOLOGY_YAML.name}.service"), text)
    names = dict.fromkeys(["default", *re.findall(r"(?im)^[ \t]*PartitionName=.*[ \t]Topology=([^\s#]+)", new_conf)])
    entries = [FLAT_ENTRY.format(name=name, is_default=str(name == "default").lower()) for name in names]
    slurm_conf.write(TOPOLOGY_YAML, FLAT_HEAD + "".join(entries))
    yield f"replaced {TOPOLOGY_YAML}, which named no topology, by a flat one"


def keys_to_leave_out() -> List[str]:
    """Return the keys of the service with which slurmctld refuses every job: a plugin without its topology."""
    return [PLUGIN] if _plugin() in RANK_ORDER and not _has_topology() else []


def settings() -> Dict[str, str]:
    """Return the keys of slurm.conf that let ranks follow the topology; empty without one."""
    order = RANK_ORDER.get(_plugin(), "")
    current = slurm_conf.value(PARAMETERS, "")
    if not order or not _has_topology() or order.lower() in current.lower().split(","):
        return {}
    return {PARAMETERS: ",".join(filter(None, [current, order]))}


def _plugin() -> str:
    return slurm_conf.value(PLUGIN, "").lower()


def _has_topology() -> bool:
    """Return whether a file names switches or blocks, for whichever Slurm reads it."""
    yaml, conf = (path.read_text(errors="replace") if path.exists() else "" for path in (TOPOLOGY_YAML, TOPOLOGY_CONF))
    return _has_key(yaml, "tree|block") or bool(re.search(r"(?im)^[ \t]*(?:SwitchName|BlockName)[ \t]*=", conf))


def _has_key(yaml: str, names: str) -> bool:
    """Return whether a topology.yaml has one of the keys, in YAML's lines or in JSON, outside comments."""
    return bool(re.search(rf"""(?m)^[^#\n]*(?<![\w-])(?:{names})["']?[ \t]*:""", yaml))
