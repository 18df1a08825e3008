"""Simulate the requests of a boot to shared services, for 16 to 5,000 hosts, before and after they were bounded.

    python bench/scale.py [--hosts 16 64 …]

Smallest: python bench/scale.py --hosts 16

As root, with strace: two hosts of tests/bootstrap boot first, and are measured.

Measured here: what each step does to the shared file system (system calls of a real boot, by strace) and its seconds,
what reading the service's list of all instances takes, and the real lock with a thread per host.
Assumed: what services can serve. Each assumption is a constant below, with its source or the word "assumed".
Simulated: N hosts that do what was measured, against services of those rates, first come first served.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import simpy
from boots import Measured, measure

from podwright_bootstrap import contract, node
from podwright_bootstrap.steps.environment import BUILD_LIMIT_S
from podwright_bootstrap.steps.slurm import DAEMON_LIMIT_S
from podwright_bootstrap.storage.lock import locked

SIZES = (16, 100, 1000, 5000)

# The smallest rate that FSx for Lustre sells (valid values of MetadataConfiguration.Iops start here); that one system
# call on a path is one of them is assumed, and that the server serves them in order.
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreMetadataConfiguration.html
METADATA_OPS_PER_S = 1500
MOUNTS_PER_S = 200  # assumed: what management and metadata servers connect; 400 at once are reported to fail (#782)
MOUNT_LIMIT_S = 120  # the step's
SLURMCTLD_RPCS_PER_S = 500  # assumed; slurmctld serves 256 at a time, https://slurm.schedmd.com/high_throughput.html
S3_GETS_PER_S = 5500  # per prefix, https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
ARRIVAL_S = 10.0  # assumed: all instances of a new cluster run their scripts within this time
BUILD_S = 600.0  # assumed: three gigabytes of GPU wheels installed on Lustre; the rehearsal's build takes 30 to 60
CONTROLLER_S = 120.0  # assumed: when slurmctld answers
POLL_OPS = 2  # the marker is looked for, the lock is tried
KNOWN_HOSTS_OPS = 6  # before: lock, read, create, write, rename, unlock
KNOWN_HOSTS_LIMIT_S = 120  # before: for the lock
FSYNC_S = 0.005  # assumed
LINE_BYTES = 110  # of known_hosts
CLIENT_BYTES_PER_S = 1e9  # assumed: what one client reads or writes of one file


@dataclass(frozen=True)
class Design:
    """The request pattern of hosts. `before` is the commit before "Bound what a host asks of shared services"."""

    name: str
    bounded: bool

    def turn_s(self, hosts: int) -> float:
        """Return the seconds over which a request that every host makes once is spread."""
        return hosts / node.HOSTS_PER_S if self.bounded else 0.0

    def poll_s(self, hosts: int) -> float:
        """Return the seconds between two requests of one host."""
        return max(node.POLL_S, self.turn_s(hosts))


DESIGNS = (Design("before", bounded=False), Design("after", bounded=True))


class Service:
    """A service that serves in order at a rate, and records the number of requests and the longest wait."""

    def __init__(self, env: simpy.Environment, rate_per_s: float) -> None:
        self.env, self.rate_per_s = env, rate_per_s
        self.free_at, self.asked, self.worst_s = 0.0, 0, 0.0

    def ask(self, count: int = 1) -> simpy.Timeout:
        """Return the time at which the last of ``count`` operations is done."""
        self.free_at = max(self.env.now, self.free_at) + count / self.rate_per_s
        self.asked += count
        wait_s = self.free_at - self.env.now
        self.worst_s = max(self.worst_s, wait_s)
        return self.env.timeout(wait_s)


@dataclass
class SimulatedCluster:
    """Simulate one boot of all hosts."""

    hosts: int
    design: Design
    measured: Measured
    build_s: float
    env: simpy.Environment = field(default_factory=simpy.Environment)
    failed: Counter[str] = field(default_factory=Counter)
    passed_s: dict[str, float] = field(default_factory=dict)  # when the last host had done with a step

    def __post_init__(self) -> None:
        self.built = not self.build_s
        self.random = random.Random(self.hosts)  # noqa: S311 - not for secrets
        self.metadata = Service(self.env, METADATA_OPS_PER_S)
        self.mounts = Service(self.env, MOUNTS_PER_S)
        self.slurmctld = Service(self.env, SLURMCTLD_RPCS_PER_S)
        self.builder = simpy.Resource(self.env)
        self.known_hosts = simpy.Resource(self.env)
        self.published = 0
        self.refused = 0  # connections before slurmctld listens

    def boot(self) -> None:
        """Run until every host is ready or has failed."""
        for _ in range(self.hosts):
            self.env.process(self._host())
        self.env.run()

    def _host(self) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(self.random.uniform(0, ARRIVAL_S))
        for step in (self._lustre, self._ssh, self._environment, self._slurm):
            name = step.__name__[1:]
            ended = yield from step()
            if not ended:
                self.failed[name] += 1
                return
            self.passed_s[name] = self.env.now

    def _pause(self, seconds: float) -> simpy.Timeout:
        return self.env.timeout(seconds * self.random.uniform(0.5, 1.5))

    def _own(self, step: str) -> Generator[simpy.Event, Any, None]:
        """Run one host: each operation waits for the one before it."""
        yield self.env.timeout(self.measured.seconds[step])
        for _ in range(self.measured.operations[step]):
            yield self.metadata.ask()

    def _lustre(self) -> Generator[simpy.Event, Any, bool]:
        yield self.env.timeout(self.random.uniform(0, self.design.turn_s(self.hosts)))
        began = self.env.now
        yield self.mounts.ask()
        if self.env.now - began > MOUNT_LIMIT_S:
            return False
        yield from self._own("lustre")
        return True

    def _ssh(self) -> Generator[simpy.Event, Any, bool]:
        yield from self._own("ssh")
        if self.design.bounded:
            return True
        began = self.env.now
        while self.known_hosts.count:  # tried, not queued for: flock(LOCK_NB) every two seconds
            yield self.metadata.ask()
            if self.env.now - began >= KNOWN_HOSTS_LIMIT_S:
                return False
            yield self._pause(2)
        with self.known_hosts.request() as mine:
            yield mine
            yield self.metadata.ask(KNOWN_HOSTS_OPS)
            yield self.env.timeout(FSYNC_S + 2 * self.published * LINE_BYTES / CLIENT_BYTES_PER_S)
            self.published += 1
        return True

    def _environment(self) -> Generator[simpy.Event, Any, bool]:
        began = self.env.now
        while not self.built:
            yield self.metadata.ask(POLL_OPS)
            if not self.builder.count and not self.built:
                with self.builder.request() as mine:
                    yield mine
                    yield self.env.timeout(self.build_s)
                    self.built = True
                break
            if self.env.now - began >= BUILD_LIMIT_S:
                return False
            yield self._pause(self.design.poll_s(self.hosts))
        yield from self._own("environment")
        return True

    def _slurm(self) -> Generator[simpy.Event, Any, bool]:
        while self.env.now < CONTROLLER_S:
            self.refused += 1
            yield self._pause(self.design.poll_s(self.hosts))
        began, limit_s = self.env.now, DAEMON_LIMIT_S + 2 * self.design.turn_s(self.hosts)
        yield self.env.timeout(self.measured.seconds["slurm"])
        yield self.slurmctld.ask(3)  # fetches its configuration, registers, is pinged
        yield self.slurmctld.ask(2)  # scontrol ping, scontrol show node
        return self.env.now - began <= limit_s


def lock_with_threads(folder: Path, hosts: int, *, every_s: float, build_s: float) -> tuple[int, int, float]:
    """Run the real election. Return the builder, the number of tries, and seconds until the last host continued."""
    marker, built, tries = folder / f"complete-{every_s}", [], [0]

    def is_complete() -> bool:
        tries[0] += 1
        return marker.exists()

    def host() -> None:
        with locked(folder / f"lock-{every_s}", limit_s=600, every_s=every_s, unless=is_complete) as mine:
            if mine and not marker.exists():
                built.append(1)
                time.sleep(build_s)
                marker.touch()

    began = time.monotonic()
    threads = [threading.Thread(target=host) for _ in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(built), tries[0], time.monotonic() - began


def identify_s(folder: Path, hosts: int) -> float:
    """Measure how a host finds itself among all instances, with the bootstrap's own code."""
    instances = [
        {"InstanceId": f"i-{n:017x}", "CustomerIpAddress": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"}
        for n in range(hosts)
    ]
    path = folder / contract.RESOURCE_CONFIG.name
    path.write_text(json.dumps({"InstanceGroups": [{"Name": "g", "InstanceType": "t", "Instances": instances}]}))
    began = time.perf_counter()
    found = node.read_instances(path)
    assert len(found) == hosts  # noqa: S101 - a benchmark checks itself
    return time.perf_counter() - began


def print_measured(folder: Path, measured: Measured) -> None:
    """Print the inputs."""
    print("Measured: a host that joins a cluster whose environment is built")
    for step, count in measured.operations.items():
        print(f"  {step:13s} {count:4d} operations on the shared file system  {measured.seconds[step]:6.2f} s")
    print("Measured: finding oneself among all instances, O(N), local")
    print("  " + ", ".join(f"{n}: {1000 * identify_s(folder, n):.1f} ms" for n in SIZES))
    print("Measured: the real lock, 1,000 threads, a build of 20 s")
    for every_s in (node.POLL_S, 1000 / node.HOSTS_PER_S):
        built, tries, seconds = lock_with_threads(folder, 1000, every_s=every_s, build_s=20)
        print(
            f"  asking every {every_s:4.1f} s: {built} built, {tries} tries of all, last gone on after {seconds:.1f} s"
        )


def print_growth(measured: Measured) -> None:
    """Print what grows with N, step by step."""
    once = {step: measured.operations[step] for step in ("lustre", "runs", "ssh", "environment")}
    turn = f"N/{node.HOSTS_PER_S}"
    print("\nWhat grows with N (one host | all hosts | at most)")
    rows = (
        ("identity", "reads N entries, local", "-", "see above"),
        ("dns", "2 questions / 2 s", "to N resolvers", "a resolver per host"),
        ("lustre", f"1 mount, {once['lustre']} ops", "N", f"{node.HOSTS_PER_S} hosts/s: spread over {turn} s"),
        ("ssh", f"{once['ssh']} ops, 2 files of 1 line", "N", "no lock; was N lines each, N^2 in all, one at a time"),
        ("environment", "1 marker + 1 lock a poll", "N/poll", f"{node.HOSTS_PER_S} polls/s: every max(2, {turn}) s"),
        ("environment", f"then {once['environment']} ops", "N", f"{node.HOSTS_PER_S} hosts/s, as their polls are"),
        ("download", "2 objects, by the builder", "1", f"S3 serves {S3_GETS_PER_S}/s; was and is O(1)"),
        ("slurm", "3 + 2 RPCs", "N", f"{node.HOSTS_PER_S} polls/s; limit 120 s + N/50 s"),
    )
    for row in rows:
        print("  {:12s} {:26s} {:16s} {}".format(*row))


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=SIZES)
    sizes = parser.parse_args().hosts
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        tempfile.tempdir = name  # what is linked into hosts' files has to lie on the same file system
        folder = Path(name)
        measured = measure(folder)
        print_measured(folder, measured)
    print_growth(measured)
    print(f"\nSimulated: metadata {METADATA_OPS_PER_S}/s, {MOUNTS_PER_S} mounts/s, slurmctld {SLURMCTLD_RPCS_PER_S}/s")
    print(f"and up after {CONTROLLER_S:.0f} s, all hosts start within {ARRIVAL_S:.0f} s")
    for build_s, what in (
        (BUILD_S, f"a new cluster: one host builds for {BUILD_S:.0f} s"),
        (0.0, "all replaced at once"),
    ):
        print_simulated(measured, what=what, build_s=build_s, sizes=sizes)


def print_simulated(measured: Measured, *, what: str, build_s: float, sizes: Sequence[int]) -> None:
    """Print both designs at each size: seconds until the last host finished a step."""
    print(f"\n{what}; seconds until the last host was done with a step")
    steps = ("lustre", "ssh", "environment", "slurm")
    heads = "  ".join(f"{step:>11}" for step in steps)
    print(f" hosts         {heads}  ready  operations  worst wait  refused  failed")
    for hosts, design in itertools.product(sizes, DESIGNS):
        it = SimulatedCluster(hosts, design, measured, build_s)
        it.boot()
        done = "  ".join(f"{it.passed_s.get(step, float('nan')):11.1f}" for step in steps)
        lost = ", ".join(f"{count} at {step}" for step, count in it.failed.items()) or "none"
        counts = f"{it.metadata.asked:>10,}  {it.metadata.worst_s:>8.1f} s  {it.refused:>7,}"
        print(f"{hosts:>6} {design.name:7} {done}  {hosts - it.failed.total():>5}  {counts}  {lost}")


if __name__ == "__main__":
    main()
