"""Check network, clock, limits and memory for distributed jobs."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.host import process, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.host.waits import PATIENCE

FI_INFO = "/opt/amazon/efa/bin/fi_info"
MEMINFO = Path("/proc/meminfo")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (its size is asked)
CLOCK_LIMIT_S = 60  # Amazon's time service takes so long to answer after a boot.
LEAST_OPEN_FILES = 65536
MARK = "podwright-limits"  # before the numbers: a user's profile may print anything, and may end the shell


def efa(facts: InstanceFacts) -> Iterator[str]:
    """Libfabric sees as many EFA interfaces as the type has.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html
    """
    if not facts.efa_interfaces:  # or the catalog does not know
        return
    listing = process.run(FI_INFO, "-p", "efa", "-t", "FI_EP_RDM", timeout_s=60, quiet=True).output
    listed_count = len(set(re.findall(r"domain: *(\S+)", listing)))
    if listed_count != facts.efa_interfaces:
        yield f"fi_info lists {listed_count} EFA interfaces; the type has {facts.efa_interfaces}"


def clock(facts: InstanceFacts) -> Iterator[str]:  # noqa: ARG001 (for every type)
    """The clock follows Amazon's: munge and TLS refuse a clock that is minutes off.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html
    """
    chrony = shutil.which("chronyc") is not None
    try:
        waits.wait_until(
            _chrony_follows if chrony else _timedatectl_follows,
            event="the clock to be synchronised",
            limit_s=CLOCK_LIMIT_S,
        )
    except BootstrapError:
        yield f"the clock is not synchronised after {CLOCK_LIMIT_S * PATIENCE:.0f} s (chronyc tracking, timedatectl)"


def limits(facts: InstanceFacts) -> Iterator[str]:
    """Users and slurmd may lock memory, which EFA does, and open many files.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html
    """
    yield from _limits_of_logins(facts)
    shown = process.run("systemctl", "show", "slurmd", "--property=LimitMEMLOCK", timeout_s=30, quiet=True).output
    if facts.efa_interfaces and "LimitMEMLOCK=" in shown and "infinity" not in shown:
        yield f"slurmd gives its jobs {shown.strip()}; EFA needs infinity"


def _limits_of_logins(facts: InstanceFacts) -> Iterator[str]:
    user = contract.JOB_USER
    command = ("runuser", "--login", user, "--command", f"echo {MARK} $(ulimit -l) $(ulimit -n)")
    outcome = process.run(*command, timeout_s=30, check=False, quiet=True)
    printed_limits = re.findall(rf"{MARK} (\w+) (\w+)", outcome.output)
    if not printed_limits:
        yield f"the limits of {user} are unknown: a login shell ends before it runs a command ({outcome.summary})"
        return
    locked, open_files = printed_limits[-1]
    if facts.efa_interfaces and locked != "unlimited":
        yield f"{user} may lock {locked} KiB of memory; EFA needs unlimited"
    if open_files.isdigit() and int(open_files) < LEAST_OPEN_FILES:
        yield f"{user}: got a limit of {open_files} open files, need {LEAST_OPEN_FILES}"


def huge_pages(facts: InstanceFacts) -> Iterator[str]:
    """Huge pages are reserved where there is EFA: AWS's installer does so for libfabric's buffers."""
    if facts.efa_interfaces and not _meminfo()["HugePages_Total"]:
        yield "no huge pages are reserved; EFA is slower without (efa-hugepages-reserve, vm.nr_hugepages)"


def shared_memory(facts: InstanceFacts) -> Iterator[str]:  # noqa: ARG001 (for every type)
    """Shared memory has at least a quarter of the memory: NCCL and data loaders need it; Linux gives it half."""
    status = os.statvfs(SHARED_MEMORY)
    size_kib, memory_kib = status.f_blocks * status.f_frsize // 1024, _meminfo()["MemTotal"]
    if size_kib < memory_kib // 4:
        yield f"{SHARED_MEMORY} has {size_kib // 1024} MiB; a quarter of the memory is {memory_kib // 4096} MiB"


def _meminfo() -> Dict[str, int]:
    """Numbers of /proc/meminfo; sizes are in KiB."""
    return {name: int(number) for name, number in re.findall(r"^(\w+): +(\d+)", MEMINFO.read_text(), re.MULTILINE)}


def _chrony_follows() -> bool:
    shown = process.run("chronyc", "tracking", timeout_s=10, check=False, quiet=True).output
    return re.search(r"Leap status *: *Normal", shown) is not None


def _timedatectl_follows() -> bool:
    command = ("timedatectl", "show", "--property=NTPSynchronized", "--value")
    return process.run(*command, timeout_s=10, check=False, quiet=True).output.strip() == "yes"
