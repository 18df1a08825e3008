"""Write tensors in PyTorch's distributed format, each read when its turn comes, so that only one is in memory."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from podwright_training.checkpoint.checkpoint_writer import save_tensors
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.run_folder import delete_folder


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor that is read when it is written.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        read: Returns it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class StackedTensor:
    """Tensors of one shape, written as one with a leading axis; each is read when it is written.

    Attributes:
        shape: Shape of the whole.
        dtype: Its dtype.
        parts: Return the tensors.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Sequence[Callable[[], Tensor]]


@contextmanager
def unfinished_folder(final: Path, unfinished: Path) -> Iterator[None]:
    """Make a folder that is renamed to ``final`` when it is complete; delete it if that fails.

    Raises:
        CheckpointError: ``final`` exists.
    """
    if final.exists():
        raise CheckpointError(f"{final} exists: name another folder, or delete it")
    delete_folder(unfinished)  # A killed process may have left it.
    unfinished.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # After the rename it is gone.


def write_stream(
    folder: Path,
    tensors: Mapping[str, StreamedTensor | StackedTensor],
    values: Mapping[str, Any] | None = None,
    *,
    flatten: bool = True,
) -> None:
    """Write a folder of PyTorch's distributed format, in one process; its files are on disk then.

    Args:
        folder: Empty folder to write.
        tensors: The tensors by their keys.
        values: Numbers, texts, tuples, and mappings and lists of them, by their keys.
        flatten: Write each element of a mapping or list apart, under the keys of both.

    Raises:
        CheckpointError: A tensor could not be read, or the folder could not be written.
    """
    contents: dict[str, Any] = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # One process is enough.
        save_tensors(folder, contents | dict(values or {}), None, planner=_StreamPlanner(tensors, flatten=flatten))


class _StreamPlanner(DefaultSavePlanner):
    def __init__(self, tensors: Mapping[str, StreamedTensor | StackedTensor], *, flatten: bool) -> None:
        super().__init__(flatten_state_dict=flatten)
        self._tensors = tensors

    def create_local_plan(self) -> SavePlan:
        """Write each part of a stacked tensor apart."""
        plan = super().create_local_plan()
        self.plan = replace(plan, items=[part for item in plan.items for part in self._parts(item)])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Read a tensor that is about to be written."""
        tensor = self._tensors.get(index.fqn)
        if isinstance(tensor, StackedTensor) and index.offset is not None:
            return tensor.parts[index.offset[0]]().unsqueeze(0)
        return tensor.read() if isinstance(tensor, StreamedTensor) else super().lookup_object(index)

    def _parts(self, item: WriteItem) -> Iterator[WriteItem]:
        tensor = self._tensors.get(item.index.fqn)
        if not isinstance(tensor, StackedTensor) or item.tensor_data is None:
            yield item
            return
        sizes = torch.Size((1, *tensor.shape[1:]))
        for number in range(len(tensor.parts)):
            offsets = torch.Size((number, *(0 for _ in tensor.shape[1:])))
            yield replace(
                item,
                index=MetadataIndex(item.index.fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=replace(item.tensor_data, chunk=ChunkStorageMetadata(offsets, sizes)),
            )
