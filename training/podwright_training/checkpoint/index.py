"""Read the index of a checkpoint's tensors, PyTorch's ``.metadata``, without running code from it.

PyTorch pickles the index and unpickles it with every class that it names. This reader knows only the classes that
``torch.distributed.checkpoint`` writes, and no files besides those of the manifest.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItemType

from podwright_common.regular_file import open_regular
from podwright_training.checkpoint.collective_io import DamagedCheckpointError

INDEX = ".metadata"
KNOWN = {
    *(("pathlib", "PosixPath"), ("pathlib._local", "PosixPath"), ("torch", "Size")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata", "ChunkStorageMetadata"),
            *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
        )
    ),
    *(  # Megatron-Core keeps the plan of the save in the index.
        ("torch.distributed.checkpoint.planner", name)
        for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")
    ),
}
ENUMERATIONS = _MEM_FORMAT_ENCODING, WriteItemType


class IndexedReader(FileSystemReader):
    """Reader of one checkpoint's tensors.

    Args:
        path: Folder of the checkpoint.
        files: Names of its files, from the manifest.
        absence: Predicate of a file that is not among them, for the message.
    """

    def __init__(self, path: Path, files: Collection[str], absence: str = "is not in its manifest") -> None:
        super().__init__(path)
        self._files = files
        self._absence = absence

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the index.

        Raises:
            DamagedCheckpointError: It names other classes or other files.
        """
        index = Path(self.path) / INDEX
        try:
            with open_regular(index, follow_links=True) as file:
                metadata = _Unpickler(file).load()
        except Exception as error:  # a damaged pickle raises any exception
            raise DamagedCheckpointError(f"checkpoint {self.path} is damaged: {INDEX}: {error}") from error
        if not isinstance(metadata, Metadata):
            raise DamagedCheckpointError(f"checkpoint {self.path} is damaged: {INDEX} is not an index of tensors")
        if not _has_types(metadata):
            raise DamagedCheckpointError(
                f"checkpoint {self.path} is damaged: {INDEX} has values of types that no index of tensors has"
            )
        named = {info.relative_path for info in (metadata.storage_data or {}).values()}
        if foreign := sorted(named.difference(self._files)):
            raise DamagedCheckpointError(
                f"checkpoint {self.path} is damaged: {INDEX} names {foreign[0]}, which {self._absence}"
            )
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _has_types(metadata: Metadata) -> bool:
    """Return whether each value has the type that the classes declare; a pickle may have any."""
    try:
        entries, places = metadata.state_dict_metadata, metadata.storage_data
        return (
            isinstance(entries, dict)
            and all(isinstance(name, str) and _is_entry(entry) for name, entry in entries.items())
            and (places is None or isinstance(places, dict))
            and all(isinstance(index, MetadataIndex) and _is_place(place) for index, place in (places or {}).items())
        )
    except AttributeError:  # A pickle sets the attributes that it has.
        return False


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, TensorStorageMetadata):
        return isinstance(entry, BytesStorageMetadata)
    return (
        isinstance(entry.properties, TensorProperties)
        and isinstance(entry.properties.dtype, torch.dtype)
        and _is_shape(entry.size)
        and isinstance(entry.chunks, list)
        and all(
            isinstance(chunk, ChunkStorageMetadata)
            and _is_shape(chunk.offsets)
            and _is_shape(chunk.sizes)
            and len(chunk.offsets) == len(chunk.sizes) == len(entry.size)
            for chunk in entry.chunks
        )
    )


def _is_place(place: object) -> bool:
    return (
        isinstance(place, _StorageInfo)
        and isinstance(place.relative_path, str)
        and _is_shape((place.offset, place.length))
    )


def _is_shape(numbers: object) -> bool:
    return isinstance(numbers, tuple) and all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in KNOWN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 pickle an enumeration's member
            return _member
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an index of tensors; the file was not loaded")


def _member(enumeration: object, name: str) -> Enum:
    """Return a member of an enumeration that an index names, and no other attribute of anything."""
    for allowed in ENUMERATIONS:
        if enumeration is allowed and name in allowed.__members__:
            return allowed[name]
    raise pickle.UnpicklingError(f"attribute {name} is not part of an index of tensors; the file was not loaded")
