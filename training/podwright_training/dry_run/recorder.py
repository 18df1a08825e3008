"""Record a step's use of a device: memory, collectives, kernels, floating-point operations, waits of the host."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from podwright_training.dry_run import device_memory
from podwright_training.dry_run.device_memory import DeviceMemory
from podwright_training.model import attention as attention_of_model
from podwright_training.replacement import replaced

aten, c10d, functional = torch.ops.aten, torch.ops.c10d, torch.ops._c10d_functional  # noqa: SLF001

PACKAGE = Path(__file__).parents[1]

KINDS = {  # Kinds of kernels by words in an operator's name; the first match counts.
    "attention": ("attention",),
    "matrix products": ("mm", "linear"),
    "optimizer": ("adam", "foreach"),
    "copies": ("copy", "cat", "clone", "split", "chunk"),
}
WITHOUT_KERNEL = ("empty", "new_empty", "detach", "alias", "lift", "wait_tensor", "record_stream", "_unsafe_view")

WAITS = (  # The host waits for values, or for a size that depends on them.
    *(aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten.bincount),  # noqa: SLF001
    *(aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive),  # noqa: SLF001
)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
COPIES = (aten._to_copy, aten.copy_)  # noqa: SLF001

COLLECTIVES = {  # operator: (name, the argument whose bytes count)
    c10d._allgather_base_: ("all-gather", 0),
    c10d._reduce_scatter_base_: ("reduce-scatter", 1),
    c10d.allreduce_: ("all-reduce", 0),
    c10d.alltoall_base_: ("all-to-all", 1),
    c10d.send: ("send", 0),
    c10d.recv_: ("receive", 0),
    functional.all_gather_into_tensor: ("all-gather", None),
    functional.reduce_scatter_tensor: ("reduce-scatter", 0),
    functional.all_reduce: ("all-reduce", 0),
    functional.all_to_all_single: ("all-to-all", 0),
    torch.ops._dtensor.shard_dim_alltoall: ("all-to-all", 0),  # noqa: SLF001 - what DTensor calls
}


class Collective(NamedTuple):
    """A kind of collective along a dimension of the ranks' mesh."""

    kind: str
    dimension: str


class Traffic(NamedTuple):
    """Calls of a collective, and the bytes of all whole tensors that it gathers, reduces or exchanges."""

    calls: int
    size_bytes: int


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record every operation on a device."""

    def __init__(self, device_type: str, groups: Mapping[str, str], *, words: int) -> None:
        """Prepare to record.

        Args:
            device_type: operations on other devices do not count.
            groups: dimension of the ranks' mesh by the name of a process group.
            words: the last dimension of a rank's logits, and of no other tensor.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = DeviceMemory(device_type)
        self.collectives: dict[Collective, Traffic] = {}
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.flops = 0
        self._device_type = device_type
        self._groups = groups
        self._words = words
        self._pinned: Any = WeakIdKeyDictionary()  # storages: they have no hash

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` capture graphs, which it does not do under a mode by default."""
        return True

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Start recording a step; the memory's peak includes memory that is already allocated."""
        self.collectives, self.kernels, self.waits, self.flops = {}, Counter(), Counter(), 0
        self.memory.start()
        yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch everything until the block ends."""
        with self.memory.following(), self, _without_kernels(self, self._device_type):
            yield

    def wait(self) -> None:
        """Count a wait of the host for the device, by the line of the trainer that causes it."""
        self.waits[_line()] += 1

    def pin(self, values: Tensor) -> Tensor:
        """Return a pinned tensor of the host, which the device can read while the host continues."""
        self._pinned[values.untyped_storage()] = True
        return values

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and record it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back as operations on local tensors
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if _needs_values(packet, args, kwargs) and self._is_mine(args):
            self.wait()
        if packet is aten._local_scalar_dense:  # noqa: SLF001
            return 1.0 if args[0].dtype.is_floating_point else 1
        if packet is aten.equal:
            return True
        result = func(*args, **kwargs)
        self._see_copies(packet, args, kwargs, result)
        if packet in COLLECTIVES:
            self._see_collective(packet, args, result)
        elif self._is_mine((result, args)):
            self._see_kernel(func, packet, args, kwargs, result)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                is_logits = tensor.ndim > 1 and tensor.shape[-1] == self._words
                self.memory.see(tensor, device_memory.LOGITS if is_logits else None)
        return result

    def _is_mine(self, values: Any) -> bool:
        return any(isinstance(item, Tensor) and item.device.type == self._device_type for item in tree_iter(values))

    def _see_kernel(self, func: Any, packet: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = packet.__name__
        if func.namespace == "prim" or func.is_view or name.startswith(WITHOUT_KERNEL):
            return
        self.kernels[next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "other")] += 1
        count = flop_registry.get(packet)
        if count:
            args = _shapes_with_all_heads(args) if "scaled_dot_product" in name else args
            self.flops += count(*args, **kwargs, out_val=result)

    def _see_copies(self, packet: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count copies between host and device that the host waits for.

        Memory that is not pinned is copied by the host, after all that the device was asked before:
        https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html
        """
        if packet not in COPIES:
            return
        source = args[1] if packet is aten.copy_ else args[0]
        was_there, is_there = (item.device.type == self._device_type for item in (source, result))
        if was_there == is_there:
            return
        non_blocking = kwargs.get("non_blocking") or (packet is aten.copy_ and any(args[2:]))
        pinned = source.untyped_storage() in self._pinned and source.is_contiguous()  # PyTorch packs a slice elsewhere
        if not non_blocking or (is_there and not pinned):
            self.wait()

    def _see_collective(self, packet: Any, args: Any, result: Any) -> None:
        kind, index = COLLECTIVES[packet]
        counted = result if index is None else args[index]
        tensors = [item for item in tree_iter(counted) if isinstance(item, Tensor)]
        if not self._is_mine(tensors):
            return
        if packet is c10d._allgather_base_:
            self.memory.mark(tensors, device_memory.GATHERED)
        elif packet is c10d._reduce_scatter_base_:
            self.memory.mark(tensors, device_memory.COMMUNICATION)
        key = Collective(kind, self._groups.get(_group_name(args), "world"))
        before = self.collectives.get(key, Traffic(0, 0))
        size = sum(item.numel() * item.element_size() for item in tensors)
        self.collectives[key] = Traffic(before.calls + 1, before.size_bytes + size)


def _shapes_with_all_heads(args: Any) -> list[Any]:
    """Return attention's arguments with shapes for tensors, as if each query had its own key and value head.

    The formula of PyTorch 2.11 and 2.12 refuses others, and the products are the same.
    """
    query = args[0]  # queries, or the gradient of the output
    return [
        item.shape[:1] + query.shape[1:2] + item.shape[2:]
        if isinstance(item, Tensor) and item.ndim == query.ndim
        else item
        for item in args
    ]


def _needs_values(packet: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the host needs values from the device to continue, such as the size of a result."""
    if packet is aten.repeat_interleave:  # the number of times each is repeated is on the device
        return kwargs.get("output_size") is None
    if packet in INDEXING:  # the number of elements that a mask chooses
        return any(isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) for item in args[1])
    return packet in WAITS


@contextmanager
def _without_kernels(recorder: Recorder, device_type: str) -> Iterator[None]:
    """Replace calls that a device without kernels cannot answer.

    Patches, not a mode for functions: PyTorch leaves that one when it enters the backward pass.
    """
    attention, rms_norm = F.scaled_dot_product_attention, F.rms_norm
    flex, softmax, tensor = attention_of_model._flex_attention, torch.softmax, torch.tensor  # noqa: SLF001 - ours

    def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        y: Tensor = (_attention if q.device.type == device_type else attention)(q, k, v, **options)
        return y

    def flex_attention(q: Tensor, k: Tensor, v: Tensor, *, block_mask: BlockMask, enable_gqa: bool) -> Any:
        if q.device.type != device_type:
            return flex(q, k, v, block_mask=block_mask, enable_gqa=enable_gqa)
        return _attention(q, k, v, is_causal=True)

    def fused_rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        if x.device.type != device_type or torch.compiler.is_compiling():
            return rms_norm(x, shape, weight, eps)
        y: Tensor = aten._fused_rms_norm(x, shape, weight, eps)[0]  # noqa: SLF001 - what CUDA's does
        return y

    def softmax_in_fp32(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if x.device.type != device_type or dtype in (None, x.dtype):
            return softmax(x, dim, dtype)
        y: Tensor = aten._softmax(x, dim, True)  # noqa: SLF001 - CUDA's reads bf16 and writes fp32
        return y

    def tensor_on(*args: Any, **options: Any) -> Tensor:
        device = torch.device(options.pop("device", None) or "cpu")
        values: Tensor = tensor(*args, **options)
        if device.type != device_type:
            return values.to(device)
        recorder.wait()  # Copies from memory that is not pinned block the host.
        return torch.empty(values.shape, dtype=values.dtype, device=device)

    with (
        replaced(F, "scaled_dot_product_attention", scaled_dot_product_attention),
        replaced(attention_of_model, "_flex_attention", flex_attention),
        replaced(F, "rms_norm", fused_rms_norm),
        replaced(attention_of_model, "causal_lower_right", _no_bias),
        replaced(torch, "softmax", softmax_in_fp32),
        replaced(torch, "tensor", tensor_on),
        replaced(Tensor, "pin_memory", _pinning(recorder)),
    ):
        yield


def _no_bias(*_size: int) -> None:
    """Return no bias of attention's lower right corner, which tensors without values cannot make."""


def _pinning(recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Return a method of tensors, which a recorder's is not."""

    def pin_memory(values: Tensor) -> Tensor:
        return recorder.pin(values)

    return pin_memory


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """Call a GPU's kernel: flash attention, or the memory-efficient one for a mask."""
    if attn_mask is None:
        y: Tensor = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]  # noqa: SLF001
        return y
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    bias = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.shape[2])
    y = aten._scaled_dot_product_efficient_attention(q, k, v, bias, compute_log_sumexp=True)[0]  # noqa: SLF001
    return y  # noqa: RET504 - typed above


def _group_name(args: tuple[Any, ...]) -> str:
    for item in args:
        if isinstance(item, str):
            name = item
        elif isinstance(item, torch.ScriptObject):
            try:
                name = dist.ProcessGroup.unbox(item).group_name
            except RuntimeError:
                continue  # the reduction
    return name


def _line() -> str:
    """Return the innermost line of the trainer, ``file:line``."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect's is slow
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and "dry_run" not in path.parts:
            return f"{path.relative_to(PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "PyTorch"
