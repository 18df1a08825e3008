"""The random states of a checkpoint: one file for each rank."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from podwright_training.checkpoint.collective_io import (
    CollectiveIO,
)


def rng_file(path: Path) -> Path:
    """Return the file with this rank's random states."""
    return path / f"rng-{dist.get_rank():05d}.pt"


def load_rng(path: Path) -> None:
    """Restore the random states of all ranks that the saving job had."""
    CollectiveIO(path).all_ranks(lambda: _load_rng(rng_file(path)))


def save_rng(path: Path, state: dict[str, Tensor]) -> None:
    """Write a rank's random states."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _load_rng(path: Path) -> None:
    if not path.exists():
        return
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["cpu"])
    if (device := device_with_random_numbers()) and device in state:
        torch.get_device_module(device).set_rng_state(state[device])


def device_with_random_numbers() -> str | None:
    """Return the type of this machine's accelerators if they draw random numbers of their own, ``cuda`` for example."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    has = accelerator and hasattr(torch.get_device_module(accelerator), "get_rng_state")
    return accelerator.type if accelerator and has else None
