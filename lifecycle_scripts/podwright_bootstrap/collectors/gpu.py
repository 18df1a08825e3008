"""NVIDIA GPUs, as the driver's own tool reports them, and the jobs whose programs run on them.

https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from pathlib import Path
from subprocess import SubprocessError
from typing import Iterator, List, Optional, Tuple

from podwright_bootstrap.collectors.family import Family, ask

MIB = 1 << 20
# nvidia-smi's field, our metric, its meaning, and what one of nvidia-smi's units is of ours.
FIELDS = (
    ("utilization.gpu", "utilization_ratio", "Share of the last second in which a kernel ran", 0.01),
    ("memory.used", "memory_used_bytes", "Memory in use", MIB),
    ("memory.total", "memory_total_bytes", "Memory of the GPU", MIB),
    ("temperature.gpu", "temperature_celsius", "Temperature of the core", 1),
    ("power.draw", "power_watts", "Power drawn", 1),
    ("clocks.sm", "sm_clock_hertz", "Clock of the streaming multiprocessors", 1e6),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_errors_total", "ECC errors since the driver loaded", 1),
)
# Apart from those above: a driver that lacks one of the fields refuses the whole question.
THROTTLES = (
    ("clocks_throttle_reasons.hw_slowdown", "hardware"),
    ("clocks_throttle_reasons.sw_thermal_slowdown", "temperature"),
)
PROC = Path("/proc")
STEP = re.compile(rb"slurmstepd: \[(\d+)\.")  # Slurm's name of the process that starts a step's programs
STEPS_USER = 0  # A user may name a program slurmstepd, but cannot run it as root.
MOST_PARENTS = 64


def collect() -> List[Family]:
    """One sample for each GPU and field; a field that the GPU lacks is left out."""
    families = [Family(f"podwright_gpu_{name}", meaning) for _, name, meaning, _ in FIELDS]
    for index, uuid, *values in _rows("--query-gpu=", ["index", "uuid", *(field for field, *_ in FIELDS)]):
        for family, (*_, unit), value in zip(families, FIELDS, values):  # noqa: B905 (Python 3.8)
            if value.replace(".", "", 1).isdigit():  # A GPU without the value prints "[N/A]".
                family.add(float(value) * unit, gpu=index, uuid=uuid)
    return [*families, _throttled(), _jobs()]


def _throttled() -> Family:
    family = Family("podwright_gpu_throttled", "Whether the GPU runs slower, 1 or 0, and for what reason")
    with suppress(OSError, SubprocessError):  # nvidia-smi is gone, or its driver is older than these fields: no values
        for index, uuid, *values in _rows("--query-gpu=", ["index", "uuid", *(field for field, _ in THROTTLES)]):
            for (_, reason), value in zip(THROTTLES, values):  # noqa: B905 (Python 3.8)
                if value in {"Active", "Not Active"}:
                    family.add(value == "Active", gpu=index, uuid=uuid, reason=reason)
    return family


def _jobs() -> Family:
    """Return 1 for each GPU and job with a program on it: other metrics get the labels by a join on ``uuid``."""
    family = Family("podwright_gpu_job", "1 for a job of Slurm and the user whose program runs on the GPU")
    try:
        rows = list(_rows("--query-compute-apps=", ["gpu_uuid", "pid"]))
    except (OSError, SubprocessError):
        return family
    for uuid, pid in rows:
        job_and_user = job_of(int(pid)) if pid.isdigit() else None
        if job_and_user:
            family.add(1, uuid=uuid, slurm_job=job_and_user[0], user=job_and_user[1])
    return family


def job_of(pid: int) -> Optional[Tuple[str, str]]:
    """Return the Slurm job and the user of a process, by the slurmstepd among its parents; None outside of jobs."""
    with suppress(OSError):  # it has ended
        user = _user(os.stat(PROC / str(pid)).st_uid)  # noqa: PTH116 (of the process itself)
        for _ in range(MOST_PARENTS):
            status = dict(re.findall(r"^(\w+):\t(.*)$", (PROC / str(pid) / "status").read_text(), re.MULTILINE))
            if set(status["Uid"].split()) == {
                str(STEPS_USER)
            }:  # Reading the arguments of a user's process may block for ever.
                step = STEP.match((PROC / str(pid) / "cmdline").read_bytes())
                if step:
                    return step[1].decode(), user
            pid = int(status["PPid"])
            if pid <= 1:
                break
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _rows(question: str, fields: List[str]) -> Iterator[List[str]]:
    for line in ask("nvidia-smi", question + ",".join(fields), "--format=csv,noheader,nounits").splitlines():
        row = [value.strip() for value in line.split(",")]
        if len(row) == len(fields):
            yield row
