"""Read parts of a checkpoint's tensors: the bytes asked for, straight from their place in its files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from io import IOBase
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.utils import _create_file_view

from podwright_common.regular_file import open_regular
from podwright_training.checkpoint import checkpoint_reader
from podwright_training.checkpoint.collective_io import DamagedCheckpointError
from podwright_training.checkpoint.inert_pickle import reason


class _Place(NamedTuple):
    file: Path
    offset: int


class TensorReader:
    """The tensors of one checkpoint by their names; it checks no hash.

    Args:
        path: Folder of the checkpoint.
        index: Places of its tensors. Default: those of a checkpoint of podwright-train.

    Attributes:
        entries: Shape, dtype and chunks of each tensor.
    """

    def __init__(self, path: Path, index: Metadata | None = None) -> None:
        self._path = path
        self._index = index or checkpoint_reader.index(path)
        self._place = lru_cache(None)(self._find)
        metadata = self._index.state_dict_metadata.items()
        self.entries = {name: entry for name, entry in metadata if isinstance(entry, TensorStorageMetadata)}

    def read(self, name: str, begin: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a box of a tensor, which may cut no dimension but the first that is longer than one.

        Raises:
            DamagedCheckpointError: The box is not in its file.
        """
        entry = self.entries[name]
        box = None
        read_elements = 0
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
            read_elements += part.numel()
        if box is None or read_elements != box.numel():
            raise DamagedCheckpointError(
                f"checkpoint {self._path} is damaged: it has not all of {name} from {list(begin)} on"
            )
        return box

    def read_whole(self, name: str) -> Tensor:
        """Return a whole tensor."""
        size = self.entries[name].size
        return self.read(name, [0] * len(size), size)

    def _read_part(
        self, name: str, dtype: torch.dtype, chunk: ChunkStorageMetadata, low: list[int], high: list[int]
    ) -> Tensor:
        """Return the rows of a chunk between two corners; they follow each other in its file."""
        sizes = [end - first for first, end in zip(low, high, strict=True)]
        steps = [math.prod(chunk.sizes[place + 1 :]) for place in range(len(sizes))]
        before = sum((first - offset) * step for first, offset, step in zip(low, chunk.offsets, steps, strict=True))
        file, offset = self._place(name, chunk.offsets)
        begin, size_bytes = offset + before * dtype.itemsize, math.prod(sizes) * dtype.itemsize
        try:
            with open_regular(file, follow_links=True) as opened:
                if os.fstat(opened.fileno()).st_size < begin + size_bytes:
                    raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {file} ends within {name}")
                content = np.fromfile(opened, np.uint8, size_bytes, offset=begin)
        except OSError as error:
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {name}: {error}") from error
        return torch.from_numpy(content).view(dtype).view(sizes)

    def _find(self, name: str, offsets: torch.Size) -> _Place:
        """Return where a chunk's values begin in its file, as PyTorch reports when it loads a tensor without values."""
        info = self._index.storage_data.get(MetadataIndex(name, offsets))
        if info is None:
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {name} is in no file")
        path = self._path / info.relative_path
        try:
            with open_regular(path, follow_links=True) as file, FakeTensorMode():
                view = cast("IO[bytes]", _create_file_view(cast("IOBase", file), info.offset, info.length))
                fake = torch.load(view, weights_only=True)
            inside = fake.untyped_storage()._checkpoint_offset  # noqa: SLF001 -- as PyTorch's notes on serialization say
        except Exception as error:  # damaged bytes raise any exception
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {name}: {reason(error)}") from error
        self._check_place(name, offsets, fake)
        if not fake.is_contiguous():
            raise DamagedCheckpointError(
                f"checkpoint {self._path}: {name} is not contiguous, as if it were transposed: save it "
                "again after .contiguous()"
            )
        return _Place(path, info.offset + inside + fake.storage_offset() * fake.element_size())

    def _check_place(self, name: str, offsets: torch.Size, saved: Tensor) -> None:
        """Raise ``DamagedCheckpointError`` if the file has a tensor of another dtype or size than the index says."""
        entry = self.entries[name]
        sizes = next(chunk.sizes for chunk in entry.chunks if chunk.offsets == offsets)
        if saved.dtype != entry.properties.dtype or saved.numel() != math.prod(sizes):
            raise DamagedCheckpointError(
                f"checkpoint {self._path} is damaged: {name} is {saved.dtype} with {saved.numel()} elements in its "
                f"file, {entry.properties.dtype} with {math.prod(sizes)} in the index"
            )
