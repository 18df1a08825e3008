"""Makes PyTorch quick on a CPU: for this process, once, before the model is built."""

from __future__ import annotations

import ctypes
import sys
import warnings
from functools import cache

import torch
from torch import Tensor

# Parameters of mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 1 << 30


@cache
def tune() -> torch.library.Library | None:
    """Choose the faster of PyTorch's two libraries for fp32, and keep freed memory for the next step.

    Returns:
        What keeps the choice in force while it lives: this cache holds it as long as the process.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc; what it gives back to the kernel has to be cleared again on the next use
            libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    return _prefer_onednn() if torch.backends.mkldnn.is_available() else None  # type: ignore[no-untyped-call]


def _prefer_onednn() -> torch.library.Library:
    """Compute fp32 matrix products with oneDNN.

    PyTorch takes MKL, which leaves the AVX-512 of AMD's processors unused: 95 GFLOP/s against 220 on one core.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        library.impl("mm", _mm, "CPU")  # type: ignore[no-untyped-call]
        library.impl("bmm", _bmm, "CPU")  # type: ignore[no-untyped-call]
    return library


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype != torch.float32 or not left.numel() or not right.numel():
        return torch.mm(left, right, out=left.new_empty(left.shape[0], right.shape[1]))
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")  # noqa: SLF001 - no public name
    return product


def _bmm(left: Tensor, right: Tensor) -> Tensor:
    product = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    if left.dtype != torch.float32 or not left.numel() or not right.numel():
        return torch.bmm(left, right, out=product)
    for index in range(len(left)):
        product[index] = _mm(left[index], right[index])
    return product
