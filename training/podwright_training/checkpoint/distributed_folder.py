"""Read another trainer's checkpoint in PyTorch's distributed format, one tensor at a time, without running its code."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from podwright_common.regular_file import open_regular
from podwright_training.checkpoint.collective_io import CheckpointError, DamagedCheckpointError
from podwright_training.checkpoint.index import INDEX, IndexedReader
from podwright_training.checkpoint.inert_pickle import reason
from podwright_training.checkpoint.tensor_reader import TensorReader


class DistributedFolder(TensorReader):
    """A folder that ``torch.distributed.checkpoint`` wrote; it has no manifest.

    Args:
        path: The folder.

    Raises:
        CheckpointError: The folder has no index.
        DamagedCheckpointError: The index is unreadable, or names classes or files that no checkpoint has.
    """

    def __init__(self, path: Path) -> None:
        if not (path / INDEX).is_file():
            raise CheckpointError(f"{path} is not a checkpoint of torch.distributed.checkpoint: it has no {INDEX}")
        super().__init__(path, _index(path))

    def names_of_values(self) -> set[str]:
        """Return the names of what is no tensor."""
        return self._index.state_dict_metadata.keys() - self.entries.keys()

    def value(self, name: str) -> Any:
        """Return a number, text or tuple; ``None`` if the checkpoint has none of this name.

        Raises:
            DamagedCheckpointError: The bytes are something else.
        """
        content = self.content(name)
        if content is None:
            return None
        try:
            return torch.load(BytesIO(content), weights_only=True)
        except Exception as error:  # damaged bytes raise any exception
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {name}: {reason(error)}") from error

    def content(self, name: str) -> bytes | None:
        """Return the bytes of what is no tensor; ``None`` if the checkpoint has none of this name.

        Raises:
            DamagedCheckpointError: The file cannot be read.
        """
        place = self._index.storage_data.get(MetadataIndex(name))
        if place is None:
            return None
        try:
            with open_regular(self._path / place.relative_path, follow_links=True) as file:
                if os.fstat(file.fileno()).st_size < place.offset + place.length:
                    raise DamagedCheckpointError(
                        f"checkpoint {self._path} is damaged: {place.relative_path} ends within {name}"
                    )
                file.seek(place.offset)
                content: bytes = file.read(place.length)
        except OSError as error:
            raise DamagedCheckpointError(f"checkpoint {self._path} is damaged: {name}: {error}") from error
        return content


def _index(path: Path) -> Metadata:
    return IndexedReader(path, {file.name for file in path.iterdir()}, absence="is missing").read_metadata()
