"""Look up accelerators: dense bf16 rates (NVIDIA's are half of "with sparsity"), and usable memory."""

from __future__ import annotations

import re

from podwright_training.neuron import ranks_per_device

GPUS = ("cuda", "gpu")  # types of devices; gpu: of a dry run

# Looked up in order: the first name that occurs in the device's name, as whole words, wins.
PEAK_FLOPS = {
    "B200": 2.25e15,  # https://www.nvidia.com/en-us/data-center/hgx/
    "B300": 2.25e15,
    "GB200": 2.5e15,  # https://www.nvidia.com/en-us/data-center/gb200-nvl72/
    "GB300": 2.5e15,  # https://www.nvidia.com/en-us/data-center/gb300-nvl72/
    # A quarter of the dense FP4 rate, which is half of the sparse one on the data sheet.
    "RTX PRO 6000": 504e12,
    "RTX PRO 4500": 211e12,
    "H200": 989e12,  # https://www.nvidia.com/en-us/data-center/h200/
    "H100 PCIe": 756e12,  # https://www.nvidia.com/en-us/data-center/h100/
    "H100 NVL": 835e12,
    "H100": 989e12,
    "L40S": 362e12,  # https://www.nvidia.com/en-us/data-center/l40s/
    "A100": 312e12,  # https://www.nvidia.com/en-us/data-center/a100/
    "A10G": 70e12,  # AWS only: https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/
    "L4": 121e12,  # https://www.nvidia.com/en-us/data-center/l4/
    "T4": 65e12,  # Of fp16, as it has no bf16: https://www.nvidia.com/en-us/data-center/tesla-t4/
}

# Of a whole device: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/
NEURON_PEAK_FLOPS = {"Trainium": 190e12, "Trainium2": 667e12, "Trainium3": 671e12}

MEMORY_GB = {  # in 1e9 bytes; a test compares it with the planner's table
    "A10G": 24.1,
    "L4": 24.1,
    "L40S": 47.8,
    "A100-40GB": 42.4,
    "A100-80GB": 85.0,
    "H100": 85.0,
    "H200": 150.7,
    "B200": 191.5,
    "GB200": 198.0,
}


def peak_flops(device_name: str) -> float | None:
    """Return the peak FLOP/s of the CUDA device ``device_name``; ``None`` if unknown."""
    return next((peak for name, peak in PEAK_FLOPS.items() if re.search(rf"\b{name}\b", device_name)), None)


def rank_peak_flops(accelerator: str) -> float | None:
    """Return the peak FLOP/s of one rank on an accelerator of either table; ``None`` if unknown."""
    return neuron_peak_flops(accelerator) or peak_flops(accelerator)


def neuron_peak_flops(device: str) -> float | None:
    """Return the peak FLOP/s of a rank's part of a device such as ``Trainium2``; ``None`` if unknown."""
    peak = NEURON_PEAK_FLOPS.get(device)
    return peak / ranks_per_device(device) if peak else None
