"""The section ``nodes`` of ``cluster.yaml``: what nodes have beyond Slurm and file systems, off unless asked for."""

from __future__ import annotations

from pydantic import Field

from podwright.section import Section


class PamSlurmAdopt(Section):
    """Logins on compute nodes for who has a job there, and for root; the image must have Slurm's PAM module."""

    admins: tuple[str, ...] = Field(("ubuntu",), description="Users who may log in there without a job.")


class Nodes(Section):
    """What lifecycle scripts set up besides."""

    pam_slurm_adopt: PamSlurmAdopt | None = Field(
        default=None, description="Who may log in on compute nodes; none is anybody."
    )
