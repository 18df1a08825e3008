"""HyperPod's releases that a rehearsal can follow, from public pages: ``podwright rehearse --profile``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from podwright_rehearsal.clusters.profile import SETTINGS, Release

_AGENT = "https://github.com/awslabs/awsome-distributed-ai/pull/1191"
_BOTH_SLURMS = "https://github.com/awslabs/awsome-distributed-ai/pull/1107"
_EMPTY_YAML = "https://github.com/aws-samples/sample-physical-ai-scaffolding-kit/pull/23"
_TOPOLOGY = "https://aws.amazon.com/about-aws/whats-new/2026/04/amazon-sagemaker-hyperpod-automatic-slurm-topology/"
_LATE_NODES = "https://github.com/aws-samples/sample-physical-ai-scaffolding-kit/blob/main/physai/docs/en/INFRA.md"
_ACCOUNTING = "https://docs.amazonaws.cn/en_us/sagemaker/latest/dg/sagemaker-hyperpod-external-accounting-db-slurm.md"
_LISTING = "https://github.com/awslabs/awsome-distributed-ai/pull/452"
_SLURM_FIXES = "https://github.com/SchedMD/slurm/tree/slurm-25-11-8-1"

_NOVEMBER_2025 = Release(
    name="2025-11",
    slurm="24.11",
    settings=SETTINGS,
    sources={"slurm": _BOTH_SLURMS, "settings": _LISTING},
)
_APRIL_2026 = replace(
    _NOVEMBER_2025,
    name="2026-04",
    topology="topology.conf",
    names_nodes_late=True,
    sources={"topology": _TOPOLOGY, "names_nodes_late": _LATE_NODES},
)
_JULY_2026 = replace(
    _APRIL_2026,
    name="2026-07",
    slurm="25.11",
    staged_slurm=("24.11",),
    topology="topology.yaml",
    # Path and keys are public, the values are a guess: topologies are on by default, slurm.conf names nodes by their
    # addresses, and nobody has reported a magnetic reservation.
    agent_config={
        "SlurmConfiguration": {
            "EnableTopology": True,
            "UseInstanceNames": False,
            "CreateMagneticReservations": False,
        }
    },
    sources={
        "slurm": _BOTH_SLURMS,
        "staged_slurm": _BOTH_SLURMS,
        "topology": _EMPTY_YAML,
        "agent_config": _AGENT,
    },
)
_NOVEMBER_2026 = replace(
    _JULY_2026,
    name="2026-11",
    # A guess: the first 25.11 without the holes that were published in September 2026.
    slurm="25.11.8",
    external_accounting=True,
    sources={"slurm": _SLURM_FIXES, "external_accounting": _ACCOUNTING},
)

RELEASES: Mapping[str, Release] = {
    release.name: release for release in (_NOVEMBER_2025, _APRIL_2026, _JULY_2026, _NOVEMBER_2026)
}
NEWEST = _NOVEMBER_2026
