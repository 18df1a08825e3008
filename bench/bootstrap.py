"""Time a node's bootstrap, beside AWS's reference scripts for HyperPod on the same hosts.

    python bench/bootstrap.py [--rounds 5] [--before COMMIT]

Smallest: python bench/bootstrap.py --rounds 1 --before HEAD

As root, on hosts of tests/bootstrap. Prints medians of interleaved rounds.

By step: this version beside another commit of the repository, each with its own scripts and hosts. Default: the last
commit that built the training environment with venv and pip, which uv does today.
Measured: our boots, and those commands of the reference that a host of tests/bootstrap can run: mounts, key pairs,
daemons.
Counted, not slept: the waits that the reference's scripts hard-code on a path without any fault. Counted, not timed, in
the reference's favour: the Ansible processes it starts, and what each node downloads and compiles.
The reference is read, not copied: base-config of awslabs/awsome-distributed-training at 0edaf15 (June 2026), default
options (Docker, Enroot and Pyxis on; OpenZFS, observability, LDAP off).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from boots import HOSTS, boot, cluster

from podwright.checkout import ROOT

ROUNDS = 5
BEFORE = "a13792b^"
Steps = dict[str, dict[str, float]]  # seconds, by host and step
SHOWN_FROM_S = 0.005
CONTROLLER, COMPUTE = "controller", "compute"


@dataclass(frozen=True)
class ReferenceStep:
    """One script of the reference in our words."""

    file: str
    what: str
    commands: str = ""  # what of it a host of tests/bootstrap can run
    wait_s: float = 0  # hard-coded, without any fault
    ansible: int = 0  # processes of `ansible localhost`
    downloads: int = 0  # files, repositories and package-index refreshes, by each node
    only: str = ""  # role


MOUNT = (
    "modprobe lnet; modprobe lustre; mkdir -p /mnt/fsx; "
    "mount -t lustre -o noatime,flock fs-0123@tcp:/abcdefgh /mnt/fsx; "
    "findmnt --mountpoint /mnt/fsx >/dev/null; touch /mnt/fsx/test_file; rm /mnt/fsx/test_file"
)
KEYS = (
    "mkdir -p /mnt/fsx/ubuntu/.ssh; cd /mnt/fsx/ubuntu/.ssh; "
    "[ -f id_rsa ] || ssh-keygen -t rsa -b 4096 -q -f id_rsa -N ''; cat id_rsa.pub >>authorized_keys"
)
REFERENCE = (
    ReferenceStep("on_create.sh", "sleeps, so that the resolver may have restarted", wait_s=30),
    ReferenceStep("utils/install_ansible.sh", "apt update, pip, Ansible, a collection", downloads=4),
    ReferenceStep("mount_fsx.sh", "mounts Lustre, proves it with a file", MOUNT, ansible=8),
    ReferenceStep("add_users.sh", "nobody to add", "true"),
    ReferenceStep("lifecycle_script.py", "looks for slurm.conf and for itself", "ip -json -4 address >/dev/null"),
    ReferenceStep("setup_mariadb_accounting.sh", "database on the controller", wait_s=3, downloads=2, only=CONTROLLER),
    ReferenceStep("apply_hotfix.sh", "apt update, holds packages", downloads=1),
    ReferenceStep("utils/motd.sh", "asks the metadata service, greets", "true"),
    ReferenceStep("utils/fsx_ubuntu.sh", "home of ubuntu on Lustre", "mkdir -p /mnt/fsx/ubuntu", ansible=2),
    ReferenceStep(
        "start_slurm.sh", "controller", "systemctl enable slurmctld; systemctl restart slurmctld", only=CONTROLLER
    ),
    ReferenceStep(
        "start_slurm.sh",
        "others",
        "systemctl daemon-reload; systemctl enable slurmd; systemctl restart slurmd",
        only=COMPUTE,
    ),
    ReferenceStep("setup_user_associations.sh", "five seconds after slurmdbd is active", wait_s=5, only=CONTROLLER),
    ReferenceStep("utils/gen-keypair-ubuntu.sh", "RSA key pair on Lustre", KEYS, ansible=4),
    ReferenceStep("utils/ssh-to-compute.sh", "turns host key checks off", "true"),
    ReferenceStep("utils/install_docker.sh", "Docker and NVIDIA's toolkit", downloads=6),
    ReferenceStep("utils/install_enroot_pyxis.sh", "two packages, a git clone, make", downloads=3),
)


def reference_steps(role: str) -> list[ReferenceStep]:
    """Those of a node's role."""
    return [step for step in REFERENCE if step.only in {"", role}]


def seconds(host: object, commands: str) -> float:
    """Wall time of one boot."""
    began = time.monotonic()
    boot(host, commands)
    return time.monotonic() - began


def one_round(folder: Path) -> dict[str, float]:
    """Every measurement once, on hosts with empty disks; a host's own start is taken off."""
    cloud, make_host = cluster(folder)
    patience = {"patience": 1.0}
    hosts = {
        "builder": make_host(cloud, folder, address="10.1.0.5", **patience),
        "joining": make_host(cloud, folder, address="10.1.0.57", **patience),
        CONTROLLER: make_host(cloud, folder, role=CONTROLLER, **patience),
    }
    bare = seconds(make_host(cloud, folder, address="10.1.0.6", **patience), "true")
    taken = {f"ours, {name}": seconds(host, "./on_create.sh") - bare for name, host in hosts.items()}
    taken["ours, joining, again"] = seconds(hosts["joining"], "./on_create.sh") - bare  # the power was off: it mounts
    for role in (CONTROLLER, COMPUTE):  # the first makes the RSA key pair, the second finds it
        steps = "\n".join(step.commands for step in reference_steps(role) if step.commands)
        host = make_host(cloud, folder / role, role=role, address="10.1.0.6", **patience)
        taken[f"reference, {role}"] = seconds(host, steps) - bare
    return taken


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """A folder with the files of another commit."""
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(("git", "archive", commit), cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(("tar", "--extract", "--directory", name), input=archive, check=True)
        yield Path(name)


def seconds_by_step(checkout: Path) -> Steps:
    """Boot the hosts of a checkout, in a process of its own: both have modules of the same names."""
    code = f"import boots, pathlib; boots.print_seconds_by_step(pathlib.Path({str(checkout)!r}))"
    command = (sys.executable, "-c", code)
    printed = subprocess.run(command, cwd=Path(__file__).parent, check=True, stdout=subprocess.PIPE).stdout
    steps: Steps = json.loads(printed)
    return steps


def print_steps(before: list[Steps], now: list[Steps], commit: str) -> None:
    """Print the medians of each step that took time, both versions side by side."""
    print(f"{'median of ' + str(len(now)) + ', seconds':24}" + "".join(f"{host:>22}" for host in HOSTS))
    print(f"{'step':24}" + f"{commit[:11]:>12}{'now':>10}" * len(HOSTS))
    totals = {(host, when): 0.0 for host in HOSTS for when in ("before", "now")}
    for step in dict.fromkeys([*now[0]["builder"], *before[0]["builder"]]):
        cells = []
        for host in HOSTS:
            for when, rounds in (("before", before), ("now", now)):
                taken = [taken[host][step] for taken in rounds if step in taken[host]]
                cells.append(median(taken) if taken else None)
                totals[host, when] += cells[-1] or 0.0
        if any((cell or 0.0) >= SHOWN_FROM_S for cell in cells):
            print(f"{step:24}" + "".join(_cell(cell, 10 if i % 2 else 12) for i, cell in enumerate(cells)))
    print(f"{'all':24}" + "".join(_cell(total, 10 if i % 2 else 12) for i, total in enumerate(totals.values())))
    print()


def _cell(seconds_taken: float | None, width: int) -> str:
    return f"{'-' if seconds_taken is None else f'{seconds_taken:.2f}':>{width}}"


def main() -> None:
    """Measure, count, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT", help="to compare with. Default: %(default)s")
    options = parser.parse_args()
    rounds: list[dict[str, float]] = []
    before: list[Steps] = []
    now: list[Steps] = []
    with checkout_of(options.before) as other:
        for _ in range(options.rounds):
            before.append(seconds_by_step(other))
            now.append(seconds_by_step(ROOT))
            with tempfile.TemporaryDirectory() as name:
                rounds.append(one_round(Path(name)))
    print_steps(before, now, options.before)
    middle = {name: median(taken[name] for taken in rounds) for name in rounds[0]}
    print(f"{f'median of {len(rounds)}':24} measured")
    for name, taken_s in middle.items():
        print(f"{name:24} {taken_s:7.2f} s")
    print("\nThe reference, step by step         hard-coded wait   ansible   downloads per node")
    for step in REFERENCE:
        print(f"{step.file:34} {step.wait_s:12.0f} s {step.ansible:9} {step.downloads:11}   {step.only:10} {step.what}")
    print(f"\n{'':12} {'reference':>38}   {'ours, all measured':>20}   ratio")
    for role, ours in ((COMPUTE, "ours, joining"), (CONTROLLER, f"ours, {CONTROLLER}")):
        steps, ran = reference_steps(role), middle[f"reference, {role}"]
        waits = sum(step.wait_s for step in steps)
        total = f"{ran:.2f} s measured + {waits:.0f} s counted"
        print(f"{role:12} {total:>38}   {middle[ours]:>18.2f} s   {(ran + waits) / middle[ours]:5.1f}")
        print(
            f"{'':12} not timed: {sum(s.ansible for s in steps)} Ansible processes, {sum(s.downloads for s in steps)} "
            "downloads by every node; ours: none"
        )
    built_s = middle["ours, builder"]
    print(f"One node of a cluster also builds what jobs run in: {built_s:.0f} s here, a small package. The")
    print("reference leaves that to its users. Neither number says anything of a cloud's own times.")


if __name__ == "__main__":
    main()
