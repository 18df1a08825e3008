"""Read parts of a checkpoint's tensors: the bytes asked for, straight from their place in its files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.utils import _create_file_view

from podwright_training.checkpoint import checkpoint_reader
from podwright_training.checkpoint.collective_io import DamagedCheckpointError

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.


class _Place(NamedTuple):
    file: FileIO
    offset: int


class TensorReader:
    """The tensors of one checkpoint by their names, as a context manager; it checks no hash.

    Attributes:
        entries: Shape, dtype and chunks of each tensor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index = checkpoint_reader.index(path)
        self._stack = ExitStack()
        self._file = lru_cache(None)(lambda name: self._stack.enter_context((path / name).open("rb", buffering=0)))
        self._place = lru_cache(None)(self._find)
        metadata = self._index.state_dict_metadata.items()
        self.entries = {name: entry for name, entry in metadata if isinstance(entry, TensorStorageMetadata)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the checkpoint's files."""
        self._stack.close()

    def read(self, name: str, begin: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a box of a tensor, which may cut no dimension but the first that is longer than one.

        Raises:
            DamagedCheckpointError: The box is not in its file.
        """
        entry = self.entries[name]
        box = None
        for chunk in entry.chunks:
            low = [max(*pair) for pair in zip(begin, chunk.offsets, strict=True)]
            ends = zip(begin, shape, chunk.offsets, chunk.sizes, strict=True)
            high = [min(first + size, offset + length) for first, size, offset, length in ends]
            if any(end <= first for first, end in zip(low, high, strict=True)):
                continue
            part = self._read_part(name, entry.properties.dtype, chunk, low, high)
            if part.shape == torch.Size(shape):
                return part
            box = torch.empty(tuple(shape), dtype=entry.properties.dtype) if box is None else box
            bounds = zip(low, high, begin, strict=True)
            box[tuple(slice(first - start, end - start) for first, end, start in bounds)] = part
        if box is None:
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: it has no {name} at {list(begin)}")
        return box

    @classmethod
    def mean_of(cls, paths: Sequence[Path]) -> TensorReader:
        """Return a reader of the mean of several checkpoints' tensors, in fp32."""
        return cls(paths[0]) if len(paths) == 1 else MeanReader(paths)

    def _read_part(
        self, name: str, dtype: torch.dtype, chunk: ChunkStorageMetadata, low: list[int], high: list[int]
    ) -> Tensor:
        """Return the rows of a chunk between two corners; they follow each other in its file."""
        sizes = [end - first for first, end in zip(low, high, strict=True)]
        steps = [math.prod(chunk.sizes[place + 1 :]) for place in range(len(sizes))]
        before = sum((first - offset) * step for first, offset, step in zip(low, chunk.offsets, steps, strict=True))
        part = torch.empty(sizes, dtype=dtype)
        file, offset = self._place(name, chunk.offsets)
        view = part.reshape(-1).view(torch.uint8).numpy().data
        file_offset = offset + before * dtype.itemsize
        while view:
            count = os.preadv(file.fileno(), [view], file_offset)
            if not count:
                raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {file.name} ends within {name}")
            view, file_offset = view[count:], file_offset + count
        return part

    def _find(self, name: str, offsets: torch.Size) -> _Place:
        """Return where a chunk's values begin in its file, as PyTorch reports when it loads a tensor without values."""
        info = self._index.storage_data[MetadataIndex(name, offsets)]
        file = self._file(info.relative_path)
        try:
            with FakeTensorMode():
                view = cast("IO[bytes]", _create_file_view(file, info.offset, info.length))
                fake = torch.load(view, weights_only=True)
            inside = fake.untyped_storage()._checkpoint_offset  # noqa: SLF001 -- as PyTorch's notes on serialization say
        except Exception as error:  # damaged bytes raise any exception
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {name}: {error}") from error
        if not fake.is_contiguous():
            raise DamagedCheckpointError(
                f"checkpoint {self._path} was not written by podwright-train: {name} is not contiguous"
            )
        return _Place(file, info.offset + inside + fake.storage_offset() * fake.element_size())


class MeanReader(TensorReader):
    """The mean of the same tensors in several checkpoints; the first has their shapes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths[0])
        self._others = [TensorReader(path) for path in paths[1:]]
        for other in self._others:
            self._stack.enter_context(other)

    def read(self, name: str, begin: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the mean of a box."""
        total = super().read(name, begin, shape).float()
        for other in self._others:
            total += other.read(name, begin, shape)
        return total / (1 + len(self._others))
