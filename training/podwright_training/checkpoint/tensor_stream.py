"""Write tensors in PyTorch's distributed format, each read when its turn comes, so that only one is in memory."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex

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
    folder: Path, tensors: Mapping[str, StreamedTensor], values: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Write a folder of PyTorch's distributed format, in one process; its files are on disk then.

    Args:
        folder: Empty folder to write.
        tensors: The tensors by their keys.
        values: Numbers, texts and tuples, by section and key.

    Raises:
        CheckpointError: A tensor could not be read, or the folder could not be written.
    """
    contents: dict[str, Any] = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # One process is enough.
        save_tensors(folder, contents | dict(values or {}), None, planner=_StreamPlanner(tensors))


class _StreamPlanner(DefaultSavePlanner):
    def __init__(self, tensors: Mapping[str, StreamedTensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Read a tensor that is about to be written."""
        tensor = self._tensors.get(index.fqn)
        return tensor.read() if tensor else super().lookup_object(index)
