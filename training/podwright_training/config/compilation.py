"""Decide whether a run's blocks and loss are compiled."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from podwright_training.config.parallel_dims import splits_backward
from podwright_training.config.train_config import TrainConfig

DRY_RUN_DEVICE = "gpu"  # in the place of a GPU of another machine


def is_compiled(config: TrainConfig, device_type: str) -> bool:
    """Return whether blocks and loss are compiled on such a device.

    By default they are on NVIDIA GPUs: on an H200 a compiled step of Llama 3.2 1B had 1.16 times the tokens/s of an
    eager one (docs/measured.md), in torchtitan's table for H100 1.157 times
    (https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md). On a CPU compiling
    takes longer than most runs. An option that only the compiler can fulfil compiles anywhere.

    Args:
        config: The run.
        device_type: PyTorch's name of the device, such as ``cuda``.
    """
    if config.compile is not None:
        return config.compile
    budgeted = config.activation_checkpointing and config.activation_checkpointing_mode == "budget"
    if splits_backward(config) or config.device_rules == "neuron":
        return False
    if config.async_tensor_parallel or budgeted:
        return True
    if config.offload_activations:  # Dynamo runs what is within save_on_cpu eagerly.
        return False
    return device_type == DRY_RUN_DEVICE or (device_type == "cuda" and toolchain_problem() is None)


def toolchain_problem() -> str | None:
    """Return what this machine lacks to compile for its GPUs, or ``None``.

    Triton builds a small C module for each kernel:
    https://github.com/triton-lang/triton/blob/main/python/triton/runtime/build.py
    """
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacks = [
        *([] if os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc") else ["a C compiler (gcc)"]),
        *([] if header.exists() else [f"{header} (python3-dev)"]),
    ]
    return f"torch.compile needs {' and '.join(lacks)}" if lacks else None
