"""Speed up PyTorch on a CPU: once per process, before the model is built."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# Parameters of mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 1 << 30
HALVES = (torch.bfloat16, torch.float16)


@cache
def tune() -> torch.library.Library | None:
    """Choose the fastest matrix library on this processor, and keep freed memory for the next step.

    Returns:
        The registration of that library's kernels, cached for the life of the process. ``None``: PyTorch's default is
        as fast.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc; what it gives back to the kernel has to be cleared again on the next use
            libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        return prefer_onednn()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001 - no public name
        return None
    return prefer_openblas() if _is_amd() and _openblas_threads() == torch.get_num_threads() else widen_halves()


def prefer_onednn() -> torch.library.Library:
    """Compute fp32 matrix products with oneDNN.

    PyTorch uses MKL, which does not use AVX-512 on AMD processors: 95 GFLOP/s against 220 on one core. With
    AVX2 only, neither is faster.
    """
    return _replace(mm=_onednn_mm, bmm=_onednn_bmm, addmm_=_onednn_addmm_)


def prefer_openblas() -> torch.library.Library:
    """Compute products of fp32 matrices with NumPy's OpenBLAS, and those of bf16 and fp16 in fp32 as well.

    On AMD's processors without AVX-512 it reaches 72 GFLOP/s on one core with the matrices of a Llama, MKL 65. For the
    small products of attention MKL is faster.
    """
    return _replace(mm=_openblas_mm, bmm=_widened_bmm, addmm_=_openblas_addmm_)


def widen_halves() -> torch.library.Library:
    """Compute matrix products of bf16 and fp16 in fp32, rounded once at the end, as a GPU does.

    A processor without such instructions loops over single elements: 1 to 6 GFLOP/s against 75.
    """
    return _replace(mm=_widened_mm, bmm=_widened_bmm)


def _is_amd() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and "AuthenticAMD" in info.read_text()


def _openblas_threads() -> int:
    """Return the number of threads of NumPy's OpenBLAS, 0 if NumPy uses another library; torch has its own number."""
    parts = np.show_config(mode="dicts")["Build Dependencies"]
    if "openblas" not in parts["blas"]["name"]:
        return 0
    settings = (os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"))
    return next((int(value) for value in settings if value.isdigit()), len(os.sched_getaffinity(0)))


def _replace(**kernels: Callable[..., Tensor]) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    return library


# PyTorch's own kernel is still there below the name with ``out=``.


def _mm(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right, out=left.new_empty(left.shape[0], right.shape[1]))


def _bmm(left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left, right, out=left.new_empty(left.shape[0], left.shape[1], right.shape[2]))


def _onednn_mm(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype != torch.float32 or not left.numel() or not right.numel():
        return _mm(left, right)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")  # noqa: SLF001 - no public name
    return product


def _onednn_bmm(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype != torch.float32 or not left.numel() or not right.numel():
        return _bmm(left, right)
    return torch.stack([_onednn_mm(*pair) for pair in zip(left, right, strict=True)])


def _onednn_addmm_(total: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if total.dtype != torch.float32 or beta != 1 or alpha != 1:
        return torch.addmm(total, left, right, beta=beta, alpha=alpha, out=total)
    return total.add_(_onednn_mm(left, right))


# What ``Tensor.numpy`` has shown can no longer be resized, as FSDP resizes its parameters; DLPack leaves no such mark.


def _openblas_mm(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype in HALVES:
        return _openblas_mm(left.float(), right.float()).to(left.dtype)
    if left.dtype != torch.float32:
        return _mm(left, right)
    product = left.new_empty(left.shape[0], right.shape[1])
    with np.errstate(all="ignore"):  # the guard reports NaN and Inf
        np.matmul(np.from_dlpack(left.detach()), np.from_dlpack(right.detach()), out=product.numpy())
    return product


def _openblas_addmm_(total: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if total.dtype != torch.float32 or beta != 1 or alpha != 1:
        return torch.addmm(total, left, right, beta=beta, alpha=alpha, out=total)
    return total.add_(_openblas_mm(left, right))


def _widened_mm(left: Tensor, right: Tensor) -> Tensor:
    return _mm(left.float(), right.float()).to(left.dtype) if left.dtype in HALVES else _mm(left, right)


def _widened_bmm(left: Tensor, right: Tensor) -> Tensor:
    return _bmm(left.float(), right.float()).to(left.dtype) if left.dtype in HALVES else _bmm(left, right)
