"""Slurm's nodes, queue and controller, asked on the controller.

https://slurm.schedmd.com/sdiag.html
"""

from __future__ import annotations

import re
from collections import Counter
from typing import List

from podwright_bootstrap.collectors.family import Family, ask

BIN = "/opt/slurm/bin"
# sdiag's words, our metric, its meaning, and what one of sdiag's units is of ours.
DIAGNOSTICS = (
    ("Server thread count", "server_threads", "Threads of slurmctld that answer", 1),
    ("Agent queue size", "agent_queue_messages", "Messages to nodes that wait", 1),
    ("Last cycle", "schedule_cycle_seconds", "How long the last scheduling cycle took", 1e-6),
)


def collect() -> List[Family]:
    """Nodes by state, jobs and their nodes by partition and state, and how busy slurmctld is."""
    nodes = Family("podwright_slurm_nodes", "Nodes by state")
    unique = set(ask(f"{BIN}/sinfo", "-h", "-N", "-o", "%N %T").splitlines())  # a node has a line in each partition
    for state, count in sorted(Counter(_state(line.split()[1]) for line in unique).items()):
        nodes.add(count, state=state)
    jobs = Family("podwright_slurm_jobs", "Jobs by partition and state")
    job_nodes = Family("podwright_slurm_job_nodes", "Nodes that jobs have or ask for, by partition and state")
    queue = [line.split() for line in ask(f"{BIN}/squeue", "-h", "-r", "-o", "%P %T %D").splitlines()]
    for (partition, state), count in sorted(Counter((row[0], row[1].lower()) for row in queue).items()):
        jobs.add(count, partition=partition, state=state)
        node_count = sum(int(row[2]) for row in queue if (row[0], row[1].lower()) == (partition, state))
        job_nodes.add(node_count, partition=partition, state=state)
    return [nodes, jobs, job_nodes, *_diagnostics(ask(f"{BIN}/sdiag"))]


def _diagnostics(text: str) -> List[Family]:
    """The first of each: the main scheduler's before the backfill scheduler's."""
    families = []
    for words, name, meaning, unit in DIAGNOSTICS:
        family = Family(f"podwright_slurm_{name}", meaning)
        match = re.search(rf"^\s*{words}:\s*(\d+)", text, flags=re.MULTILINE)
        if match:
            family.add(int(match.group(1)) * unit)
        families.append(family)
    return families


def _state(shown: str) -> str:
    """Without the marks of a node that does not respond, reboots or saves power."""
    return shown.rstrip("*~#!%$@^-").lower()
