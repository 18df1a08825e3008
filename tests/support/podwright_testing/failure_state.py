"""Add the state of the machine, and of each rehearsed cluster that still runs, to the report of a test that fails.

A failure that does not come again can only be understood from what was seen at its moment.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from podwright_rehearsal.clusters.rehearsed import RehearsedCluster

QUERY_LIMIT_S = 60
CLUSTER_QUERIES = ("sinfo --all --Node --long", "scontrol show jobs", "squeue --steps")
HOST_QUERIES = (
    "ps -eo pid,ppid,user,stat,wchan:24,etimes,args --forest",
    "systemctl --no-pager --no-legend list-units --failed",
    "journalctl --no-pager --lines=300 | grep -v ' su\\[' | tail -60",  # without the tests' own logins
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Query the machine and its clusters while the failed test's fixtures are still there."""
    report = yield
    if report.failed:
        report.sections.append(("State of the machine", machine_state()))
        if item.get_closest_marker("hosts") or item.get_closest_marker("rehearsal"):
            report.sections += [(f"State of {name}", text) for name, text in cluster_states()]
    return report


def machine_state() -> str:
    """Return load, free memory and what processes waited for, as the kernel has them."""
    memory = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith(("MemFree", "MemAv"))]
    lines = [f"load {' '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores", *memory]
    for path in sorted(Path("/proc/pressure").glob("*")):
        lines += [f"pressure {path.name}: {line}" for line in path.read_text().splitlines()]
    return "\n".join(lines)


def cluster_states() -> Generator[tuple[str, str], None, None]:
    """Yield the name and state of each rehearsed cluster that this process runs."""
    rehearsed = sys.modules.get("podwright_rehearsal.clusters.rehearsed")
    if rehearsed is None:
        return
    # Tests make clusters in many ways; the garbage collector alone knows all of them. isinstance would ask proxies.
    for cluster in (value for value in gc.get_objects() if issubclass(type(value), rehearsed.RehearsedCluster)):
        for query in CLUSTER_QUERIES:
            yield f"the cluster: {query}", _answer(cluster, "controller", query)
        for hostname in cluster.nodes:
            for query in HOST_QUERIES:
                yield f"{hostname}: {query}", _answer(cluster, hostname, query)


def _answer(cluster: RehearsedCluster, hostname: str, query: str) -> str:
    """Return what a host prints, or why it does not answer: it may be the host that the test has lost."""
    try:
        process = cluster.run(query, host=hostname, user="root", check=False, timeout_s=QUERY_LIMIT_S)
    except Exception as error:  # noqa: BLE001 -- the test's own failure must be reported whatever this one is
        return f"{type(error).__name__}: {error}"
    return process.stdout + process.stderr
