"""Boot hosts of tests/bootstrap for benchmarks: root, namespaces, real files, mounts, pip and ssh-keygen.

Used by bootstrap.py and scale.py.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright.checkout import ROOT

HOSTS = {  # in the order in which they boot
    "builder": {"address": "10.1.0.5"},
    "joining": {"address": "10.1.0.57"},
    "controller": {"role": "controller"},
}
TRACED = "%file,flock,write"


@dataclass(frozen=True)
class Measured:
    """One host's boot, by step: operations on the shared file system, and seconds of its own."""

    operations: dict[str, int]
    seconds: dict[str, float]


def cluster(folder: Path, *, checkout: Path = ROOT) -> tuple[Any, Any]:
    """A shared file system, bucket and package index below ``folder``, and the class of their hosts."""
    sys.path[:0] = [str(checkout / name) for name in (".", "common", "lifecycle_scripts")]
    from tests.bootstrap import conftest

    return conftest.Cloud(folder / "cloud"), conftest.Host


def boot(host: Any, commands: str = "./on_create.sh") -> dict[str, Any]:
    """Boot a host; how each step went, by its name. A failed boot ends the benchmark with its log."""
    ended = host.boot(commands)
    if ended.exit_code:
        sys.exit(ended.output)
    return dict(ended.results)


def measure(folder: Path) -> Measured:
    """Boot a host that builds the environment, then one that joins, the second under strace."""
    cloud, make_host = cluster(folder)
    boot(make_host(cloud, folder, address="10.1.0.5"))
    joining = make_host(cloud, folder, address="10.1.0.57")
    results = boot(joining, f"strace -f -qq -s 40 -o /opt/trace -e trace={TRACED} python3 -m podwright_bootstrap")
    operations = dict(zip(results, per_step(joining.read("opt/trace")), strict=True))
    return Measured(operations, {step: result["seconds"] for step, result in results.items()})


def per_step(trace: str) -> list[int]:
    """System calls that name the shared file system or lock there, up to each step's JSON line."""
    counts = [0]
    for line in trace.splitlines():
        call, _, rest = re.sub(r"^\d+ +", "", line).partition("(")
        if call == "write" and '{\\"event\\": \\"step\\"' in rest:
            counts.append(0)
        elif call == "flock" or (call not in {"execve", "write"} and '"/mnt/fsx' in rest):
            counts[-1] += 1
    return counts[:-1]


def print_seconds_by_step(checkout: Path) -> None:
    """Boot each of ``HOSTS`` of a checkout once; print the seconds of its steps as JSON.

    For a process of its own: another checkout has modules of the same names.
    """
    with tempfile.TemporaryDirectory() as name:
        cloud, make_host = cluster(Path(name), checkout=checkout)
        results = {}
        for host, options in HOSTS.items():
            results[host] = boot(make_host(cloud, Path(name), patience=1.0, **options))
    taken = {host: {step: result["seconds"] for step, result in steps.items()} for host, steps in results.items()}
    print(json.dumps(taken))
