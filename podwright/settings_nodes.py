"""The section ``nodes`` of ``cluster.yaml``: what nodes have beyond Slurm and file systems, off unless asked for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from podwright.section import Section

MIN_INTERVAL_S, MAX_INTERVAL_S = 5, 300  # a series whose values are five minutes apart is stale between them


class Downloads(Section):
    """Where nodes get what their image lacks: programs, each with its checksum, and the training program's packages."""

    source: Literal["internet", "bundle"] = Field(
        description="internet is each program's own page and the package index; bundle is the cluster's bucket, where "
        "`podwright bundle --upload` puts all of it, for nodes without internet."
    )


class Containers(Section):
    """Docker, and Enroot with Pyxis: what the image lacks is installed, what it has stays."""

    docker: bool = Field(default=True, description="Whether nodes but the controller run Docker.")
    enroot: bool = Field(default=True, description="Whether `srun --container-image` works: Enroot and Pyxis.")
    docker_for_job_user: bool = Field(
        default=False,
        description="Whether ubuntu may talk to Docker. That is as good as root on the node: with Docker anybody can "
        "read and change every file of it.",
    )


class Observability(Section):
    """Metrics of hosts, accelerators, EFA, Slurm and training runs, for the workspace that `prometheus` names."""

    interval_s: int = Field(
        default=30,
        description=f"Seconds between two values of a metric, {MIN_INTERVAL_S} to {MAX_INTERVAL_S}; each is paid.",
    )


class Nodes(Section):
    """What lifecycle scripts set up besides."""

    downloads: Downloads | None = Field(default=None, description="Where programs come from; none is the internet.")
    containers: Containers | None = Field(default=None, description="Docker, Enroot and Pyxis.")
    observability: Observability | None = Field(default=None, description="Metrics that nodes give.")
