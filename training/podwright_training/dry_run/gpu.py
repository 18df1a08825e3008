"""Register a device ``gpu`` that does not compute: PyTorch's hook for backends in Python, with empty streams.

A CPU build of PyTorch has no CUDA device, not even for fake tensors. To the trainer, ``gpu`` is a GPU like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "gpu"


@cache
def register() -> torch.device:
    """Register the device with PyTorch, for the rest of the process, and return it."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module(NAME))
    _KERNELS.impl("empty.memory_format", _empty)  # type: ignore[no-untyped-call]
    _KERNELS.impl("_fused_rms_norm", _fused_rms_norm)  # type: ignore[no-untyped-call]
    _KERNELS.impl("silu_backward", _silu_backward)  # type: ignore[no-untyped-call]
    return torch.device(NAME, 0)


# FSDP allocates an empty tensor before any fake one.
_KERNELS = torch.library.Library("aten", "IMPL", "PrivateUse1")  # type: ignore[no-untyped-call]


def _empty(size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    tensor: torch.Tensor = torch._C._acc.create_empty_tensor(tuple(size), dtype or torch.get_default_dtype())  # noqa: SLF001 - for devices in Python
    return tensor


def _fused_rms_norm(x: torch.Tensor, shape: Sequence[int], *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a norm's result and the numbers that CUDA's keeps for backward: one per token, not copies in fp32."""
    return torch.empty_like(x), x.new_empty((*x.shape[: x.ndim - len(shape)], *[1] * len(shape)), dtype=torch.float32)


def _silu_backward(gradient: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the only tensor that CUDA's kernel makes; the formula in products makes five more."""
    return torch.empty_like(gradient)


class Stream:
    """Queue of work that never runs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Accept the arguments of CUDA's: device, priority, flags."""

    def wait_stream(self, _: Stream) -> None:
        """Do nothing."""

    def wait_event(self, _: Event) -> None:
        """Do nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return the event, which has already happened."""
        return event or Event()


class Event:
    """Point in a stream, always in the past."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Accept the arguments of CUDA's: device, priority, flags."""

    def record(self, _: Stream | None = None) -> Event:
        """Return the event."""
        return self

    def wait(self, _: Stream | None = None) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return ``True``."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""


class _Module(ModuleType):
    """The functions that PyTorch calls of ``torch.gpu``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.Stream, self.Event = Stream, Event
        self._stream = Stream()

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, _: Any) -> None:
        """Stay with the only device."""

    def device(self, _: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def stream(self, _: Stream) -> AbstractContextManager[None]:
        return nullcontext()

    def current_stream(self, _: Any = None) -> Stream:
        return self._stream

    def get_rng_state(self, _: Any = None) -> torch.Tensor:
        return torch.empty(0)

    def set_rng_state(self, *_: Any) -> None:
        """Keep no state: no random numbers are drawn."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]
