"""Follow a device's memory by storage, and break its peak down by the contents of storages."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from podwright_training.local_tensor import local_tensor
from podwright_training.replacement import replaced

WEIGHTS = "weights"
OPTIMIZER = "optimizer states"
GRADIENTS = "gradients"
GATHERED = "gathered weights"
COMMUNICATION = "communication buffers"
LOGITS = "logits"
ACTIVATIONS = "activations"  # kept from forward to backward
WORKING = "working memory"  # The current pass frees it at its end.

CATEGORIES = (WEIGHTS, OPTIMIZER, GRADIENTS, GATHERED, COMMUNICATION, LOGITS, ACTIVATIONS, WORKING)


@dataclass
class _Storage:
    category: str | None
    in_backward: bool  # allocated in the backward pass


class DeviceMemory:
    """Bytes of every storage on a device, over time.

    Storages are local: a rank's shard counts, not the whole of a distributed tensor.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._known: dict[int, _Storage] = {}
        self._live: Counter[int] = Counter()
        self._changes: list[tuple[int, int]] | None = None
        self._before: Counter[int] = Counter()
        self._next = 0
        self._number: Any = WeakIdKeyDictionary()  # storages have no hash

    def see(self, tensor: Tensor, category: str | None = None) -> None:
        """Count a tensor's storage, once; ``category`` names its contents, if they are certain."""
        if tensor.device.type != self._device_type:
            return
        storage = tensor.untyped_storage()
        number = self._number.get(storage)
        if number is None:
            number = self._number[storage] = self._next
            self._next += 1
            self._known[number] = _Storage(category, _in_backward())
            self._change(number, storage.nbytes())
            weakref.finalize(storage, self._free, number)
        elif category is not None:
            self._known[number].category = category

    def mark(self, tensors: Iterable[Tensor], category: str) -> None:
        """Name the contents of these tensors' storages; for distributed tensors, of this rank's part."""
        for tensor in tensors:
            self.see(local_tensor(tensor), category)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow FSDP's freeing and refilling of gathered weights, which resizes their storages in place."""
        resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            number = self._number.get(storage)
            if number is not None:
                self._known[number].category = GATHERED
                self._change(number, size - self._live[number])
            return result

        with replaced(torch.UntypedStorage, "resize_", resize_):
            yield

    def start(self) -> None:
        """Forget the peak so far."""
        self._before = Counter(self._live)
        self._changes = []

    def peak(self) -> dict[str, int]:
        """Return the bytes of each category at the peak since ``start``."""
        size = {number: bytes_ for number, bytes_ in self._before.items() if bytes_}
        total = highest = sum(size.values())
        at = 0
        for index, (_, change) in enumerate(self._changes or [], start=1):
            total += change
            if total > highest:
                highest, at = total, index
        for number, change in (self._changes or [])[:at]:
            size[number] = size.get(number, 0) + change
        bytes_by_category: Counter[str] = Counter()
        for number, bytes_ in size.items():
            bytes_by_category[self._known[number].category or WORKING] += bytes_
        return {category: bytes_by_category[category] for category in CATEGORIES}

    def _free(self, number: int) -> None:
        storage = self._known[number]
        if storage.category is None and not storage.in_backward and _in_backward():
            storage.category = ACTIVATIONS
        self._change(number, -self._live[number])
        if self._changes is None:  # nobody will ask
            del self._known[number], self._live[number]

    def _change(self, number: int, change: int) -> None:
        self._live[number] += change
        if self._changes is not None and change:
            self._changes.append((number, change))


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - autograd has no public question
