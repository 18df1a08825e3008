"""One rank's part of a checkpoint, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podwright_training.checkpoint.random_state import device_with_random_numbers
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.optim import Optimizers


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of a checkpoint: the state of its trainer at one step."""

    state: TrainerState
    tensors: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]

    @classmethod
    def of(cls, state: TrainerState, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> Snapshot:
        """Take the current state; the tensors are the trainer's own, not copies."""
        rng = {"cpu": torch.get_rng_state()}
        if device := device_with_random_numbers():
            rng[device] = torch.get_device_module(device).get_rng_state()
        return cls(state, tensors_of(weights, optimizers), rng)


def tensors_of(weights: Mapping[str, Tensor], optimizers: Optimizers) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a checkpoint, as PyTorch's distributed checkpoint format names them."""
    return {"model": detached(weights), "optimizer": optimizers.state_dict()}


def detached(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by name, detached from autograd; they share memory."""
    return {name: weight.detach() for name, weight in weights.items()}
