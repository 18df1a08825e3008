"""NVIDIA GPUs, as the driver's own tool reports them.

https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from typing import List

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


def collect() -> List[Family]:
    """One sample for each GPU and field; a field that the GPU lacks is left out."""
    families = [Family(f"podwright_gpu_{name}", meaning) for _, name, meaning, _ in FIELDS]
    query = ",".join(["index", "uuid", *(field for field, *_ in FIELDS)])
    for line in ask("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits").splitlines():
        index, uuid, *values = (value.strip() for value in line.split(","))
        for family, (*_, unit), value in zip(families, FIELDS, values):  # noqa: B905 (Python 3.8)
            if value.replace(".", "", 1).isdigit():  # not "[N/A]"
                family.add(float(value) * unit, gpu=index, uuid=uuid)
    return families
