"""Compile for a device: Neuron has its own compiler, all others use PyTorch's."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def compile_backend(device_type: str) -> str:
    """Return ``torch.compile``'s backend for a type of device.

    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/compile/reference-torch-compile.html
    """
    return "neuron" if device_type == "neuron" else "inductor"


@cache
def fused(function: Any, device_type: str) -> Any:
    """Return a function compiled for a type of device, once."""
    # sizes: of a chunk, and of a last one that is smaller
    return torch.compile(function, dynamic=False, backend=compile_backend(device_type))
