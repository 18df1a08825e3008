"""The section ``nodes`` of ``cluster.yaml``: what nodes have beyond Slurm and file systems, off unless asked for."""

from __future__ import annotations

from podwright.section import Section


class Nodes(Section):
    """What lifecycle scripts set up besides."""
