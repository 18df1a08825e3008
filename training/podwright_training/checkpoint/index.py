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
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType

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
    """

    def __init__(self, path: Path, files: Collection[str]) -> None:
        super().__init__(path)
        self._files = files

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the index.

        Raises:
            DamagedCheckpointError: It names other classes or other files.
        """
        index = Path(self.path) / INDEX
        try:
            with index.open("rb") as file:
                metadata = _Unpickler(file).load()
        except Exception as error:  # a damaged pickle raises any exception
            raise DamagedCheckpointError(f"checkpoint {self.path} is damaged: {INDEX}: {error}") from error
        if not isinstance(metadata, Metadata):
            raise DamagedCheckpointError(f"checkpoint {self.path} is damaged: {INDEX} is not an index of tensors")
        named = {info.relative_path for info in (metadata.storage_data or {}).values()}
        if foreign := sorted(named.difference(self._files)):
            raise DamagedCheckpointError(
                f"checkpoint {self.path} is damaged: {INDEX} names {foreign[0]}, which is not in its manifest"
            )
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


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
