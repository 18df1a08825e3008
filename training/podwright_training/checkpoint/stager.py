"""Copy a checkpoint's tensors to the host's memory, so that training can change them while they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager


class Stager:
    """Copy state dicts to the CPU, into memory reused by every save; pinned if there is a GPU.

    PyTorch's ``DefaultStager`` does the same, but forgets its memory and its own tables after each stage in
    PyTorch 2.11 and 2.12, so that a second one fails. It also waits for all streams of the device: the copies are in
    the current one.
    """

    def __init__(self) -> None:
        self._has_gpu = torch.cuda.is_available()
        self._copies: Any = StateDictStager(pin_memory=self._has_gpu)

    def stage(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy whose tensors are on the CPU; the next stage of the same tensors overwrites them."""
        staged: dict[str, Any] = self._copies.stage(dict(state), non_blocking=self._has_gpu)
        if self._has_gpu:
            torch.cuda.current_stream().synchronize()
        return staged

    def close(self) -> None:
        """Free the memory."""
        self._copies.close()
