"""GPUs while they compute: clock, ECC errors, reasons for a lower clock, speed of matrix products.

https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from podwright_training.validation.measurements import Gpu

WIDTH = 8192  # large enough for the sustained speed
WARM_UP, PRODUCTS = 400, 400  # half a second each on an H100
QUERY_LIMIT_S = 60
FIELDS = ("index", "name", "clocks.sm", "clocks.max.sm", "ecc.errors.uncorrected.volatile.total")
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new drivers' name, old drivers' name
# Bits that mean a fault; idle, power cap and set clocks do not. NVML's nvmlClocksEventReasons,
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
FAULTS = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}


def under_load() -> tuple[Gpu, ...]:
    """Return nvidia-smi's values while all GPUs compute, and the speed of each; empty without GPUs."""
    if not query():
        return ()
    import torch

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    matrices = [torch.randn(WIDTH, WIDTH, device=device, dtype=torch.bfloat16) for device in devices]
    for matrix in matrices:  # a GPU works through its queue while the next is given its own
        _multiply(matrix, times=WARM_UP)
    timers = [_timed(matrix) for matrix in matrices]
    reported = query()
    speeds = [2 * WIDTH**3 * PRODUCTS / (begin.elapsed_time(end) / 1000) / 1e12 for begin, end in map(_wait, timers)]
    return tuple(replace(gpu, tflops=speed) for gpu, speed in zip(reported, speeds, strict=False))


def query() -> tuple[Gpu, ...]:
    """Return nvidia-smi's current values; empty without nvidia-smi."""
    for reasons in REASONS:
        command = ["nvidia-smi", f"--query-gpu={','.join((*FIELDS, reasons))}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        rows = (line.split(", ") for line in done.stdout.splitlines())
        return tuple(_gpu(row) for row in rows if len(row) == len(FIELDS) + 1)
    return ()


def _gpu(row: Sequence[str]) -> Gpu:
    index, name, clock, max_clock, errors, reasons = row
    bits = int(reasons, 16) if reasons.startswith("0x") else 0
    ecc = _number(errors)
    return Gpu(
        index=int(index),
        name=name,
        sm_clock_mhz=_number(clock),
        most_sm_clock_mhz=_number(max_clock),
        ecc_uncorrected=None if ecc is None else int(ecc),
        throttled_by=tuple(word for bit, word in FAULTS.items() if bits & bit),
    )


def _number(text: str) -> float | None:
    """Return a value, or None for ``[N/A]``."""
    return float(text) if text.replace(".", "", 1).isdigit() else None


def _multiply(matrix: Any, *, times: int) -> None:
    for _ in range(times):
        matrix @ matrix


def _timed(matrix: Any) -> tuple[Any, Any]:
    """Give a GPU products to compute, between two marks in its queue."""
    import torch

    with torch.cuda.device(matrix.device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        _multiply(matrix, times=PRODUCTS)
        end.record()
    return begin, end


def _wait(timer: tuple[Any, Any]) -> tuple[Any, Any]:
    timer[1].synchronize()
    return timer
