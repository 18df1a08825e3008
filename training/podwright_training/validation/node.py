"""A node's own report: GPUs under load, EFA, clock, write speed."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

from podwright_training.validation import gpus
from podwright_training.validation.files import write_speeds
from podwright_training.validation.measurements import NodeReport
from podwright_training.validation.steps import node_name, write_result

FI_INFO = "/opt/amazon/efa/bin/fi_info"
TOOL_LIMIT_S = 60
_OFFSET = re.compile(r"System time\s*: ([\d.]+) seconds (slow|fast)")
_TIMESYNC_OFFSET = re.compile(r"Offset: ([+-]?[\d.]+)(us|ms|s)\b")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def write_report(folder: Path, *, file_mib: int) -> None:
    """Measure this node and leave its report as the result."""
    offset_s, source = clock_offset()
    report = NodeReport(
        name=node_name(),
        gpus=gpus.under_load(),
        efa_interfaces=efa_interfaces(),
        clock_offset_s=offset_s,
        clock_source=source,
        write_mib_s=tuple(write_speeds(folder, file_mib=file_mib)),
    )
    write_result(folder, f"node-{report.name}", asdict(report))


def clock_offset() -> tuple[float | None, str]:
    """Return how many seconds the clock is ahead of the time service, and the program that says so.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html
    """
    match = _OFFSET.search(answer("chronyc", "tracking"))
    if match:
        return float(match[1]) * (1 if match[2] == "fast" else -1), "chronyc"
    match = _TIMESYNC_OFFSET.search(answer("timedatectl", "timesync-status"))
    if match:
        return float(match[1]) * _UNITS[match[2]], "timedatectl"
    return None, ""


def efa_interfaces() -> int | None:
    """Return the number of EFA interfaces that libfabric lists, or None without its program.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html
    """
    if shutil.which(FI_INFO) is None:
        return None
    return len(set(re.findall(r"domain: *(\S+)", answer(FI_INFO, "-p", "efa", "-t", "FI_EP_RDM"))))


def answer(*command: str) -> str:
    """Return a program's output; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TOOL_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
