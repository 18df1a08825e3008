"""Check that all accelerators are present and healthy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import CommandError

TOOL_LIMIT_S = 60  # If persistence mode is off, each call loads the driver, which takes seconds per GPU
NEURON_LS = "/opt/aws/neuron/bin/neuron-ls"
NEURON_SYSFS = Path("/sys/devices/virtual/neuron_device")


def count(facts: InstanceFacts) -> Iterator[str]:
    """As many accelerators as the type has: a job on fewer would hang or fail hours later."""
    if facts.accelerator == "gpu":
        listing = process.run("nvidia-smi", "-L", timeout_s=TOOL_LIMIT_S).output
        listed_count, sentence = (
            sum(line.startswith("GPU ") for line in listing.splitlines()),
            "nvidia-smi -L lists {} GPUs",
        )
    elif facts.accelerator == "neuron":
        listed_count, sentence = len(_neuron_devices()), "neuron-ls lists {} Neuron devices"
    else:
        return
    if listed_count != facts.accelerators_per_node:
        yield f"{sentence.format(listed_count)}; the type has {facts.accelerators_per_node} {facts.accelerator_name}"


def gpu_memory(facts: InstanceFacts) -> Iterator[str]:
    """No memory error that could not be corrected, no row that waits for a reset to be replaced.

    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
    """
    if facts.accelerator != "gpu":
        return
    for index, errors in _query("--query-gpu=index,ecc.errors.uncorrected.volatile.total"):
        if errors.isdigit() and int(errors):  # [N/A] where ECC is off
            yield f"GPU {index} has {errors} uncorrected memory errors since its last reset"
    for bus, pending, failure in _query("--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure"):
        if pending in {"1", "Yes"}:
            yield f"GPU at {bus} waits for a reset to replace a row of its memory"
        if failure in {"1", "Yes"}:
            yield f"GPU at {bus} could not replace a row of its memory"


def gpu_persistence(facts: InstanceFacts) -> Iterator[str]:
    """The driver stays loaded between jobs."""
    if facts.accelerator != "gpu":
        return
    off = [index for index, mode in _query("--query-gpu=index,persistence_mode") if mode != "Enabled"]
    if off:
        yield f"persistence mode is off on GPU {', '.join(off)}: every job waits for the driver to load"


def neuron_memory(facts: InstanceFacts) -> Iterator[str]:
    """No error in the memory or the buffers of a Neuron device that could not be corrected.

    The driver counts them in sysfs, since 2.31 in other folders:
    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-sysfs-user-guide.html
    """
    if facts.accelerator != "neuron":
        return
    for device in sorted(NEURON_SYSFS.glob("neuron[0-9]*")):
        for name in ("mem_ecc_uncorrected", "sram_ecc_uncorrected"):
            for counter in device.rglob(name):
                total = (counter / "total" if counter.is_dir() else counter).read_text().strip()
                if total.isdigit() and int(total):
                    yield f"{device.name} has {total} uncorrected memory errors ({name})"


def nvlink(facts: InstanceFacts) -> Iterator[str]:
    """All links between the GPUs are up, on types that have them."""
    if not facts.nvlink:
        return
    shown = process.run("nvidia-smi", "nvlink", "--status", timeout_s=TOOL_LIMIT_S).output
    for part in re.split(r"^(?=GPU )", shown, flags=re.MULTILINE):
        name = re.match(r"GPU \d+", part)
        if name:
            links = re.findall(r"Link \d+: *(.*)", part)
            down = sum("inactive" in link.lower() for link in links)
            if down or not links:
                yield f"{name.group()} has {down} of {len(links)} NVLinks down"


def _query(question: str) -> List[List[str]]:
    """Return the rows that ``nvidia-smi`` prints."""
    answer = process.run("nvidia-smi", question, "--format=csv,noheader", timeout_s=TOOL_LIMIT_S).output
    width = question.count(",") + 1
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    if any(len(row) != width for row in rows):
        raise CommandError(f"cannot parse the output of nvidia-smi {question} as CSV: {answer.splitlines()[0]}")
    return rows


def _neuron_devices() -> List[object]:
    answer = process.run(NEURON_LS, "--json-output", timeout_s=TOOL_LIMIT_S, quiet=True)
    try:
        devices = json.loads(answer.output)
    except ValueError:
        devices = None
    if not isinstance(devices, list):
        raise CommandError(f"cannot parse the output of neuron-ls --json-output: {answer.summary}")
    return devices
