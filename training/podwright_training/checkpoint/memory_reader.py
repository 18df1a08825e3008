"""Read a checkpoint whose files lie in the memory of several hosts."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torch.distributed.checkpoint.filesystem import FileSystem

from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.index import IndexedReader
from podwright_training.checkpoint.memory_server import Address, MemoryClient

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.


class RemoteFiles:
    """Files of one checkpoint on other hosts.

    Args:
        places: For each file its path below each host's folder, and where that host's server is.
        secret: Of the run.
    """

    def __init__(self, places: Mapping[str, Sequence[tuple[str, Address]]], secret: bytes) -> None:
        self._places = places
        self._secret = secret
        self._clients: dict[Address, MemoryClient] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes of a file, from the first host that has them.

        Raises:
            CheckpointError: No host has.
        """
        problems = []
        for path, address in self._places[name]:
            try:
                return self._client(address).read(path, offset, length)
            except CheckpointError as problem:
                problems.append(str(problem))
        raise CheckpointError("; ".join(problems))

    def _client(self, address: Address) -> MemoryClient:
        if address not in self._clients:
            self._clients[address] = self._stack.enter_context(MemoryClient(address, self._secret))
        return self._clients[address]


class MemoryReader(IndexedReader):
    """A reader of tensors that reads from other hosts the files that this host lacks.

    Args:
        path: This host's folder of the checkpoint, with its index.
        files: Names of all its files, from the manifest.
        remote: Those that this host does not have.
    """

    def __init__(self, path: Path, files: Mapping[str, Any], remote: RemoteFiles) -> None:
        super().__init__(path, files)
        self.fs = _Hosts(remote)

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        if isinstance(file, _RemoteFile):
            return io.BytesIO(file.remote.read(file.name, sinfo.offset, sinfo.length))
        return super()._slice_file(file, sinfo)


class _RemoteFile(io.IOBase):
    def __init__(self, remote: RemoteFiles, name: str) -> None:
        self.remote = remote
        self.name = name


class _Hosts(FileSystem):
    def __init__(self, remote: RemoteFiles) -> None:
        self._remote = remote

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file of this host, or name one of another."""
        name = Path(path).name
        if name in self._remote:
            yield _RemoteFile(self._remote, name)
            return
        with super().create_stream(path, mode) as stream:
            yield stream
