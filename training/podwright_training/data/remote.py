"""Read files from S3 and the Hugging Face hub; a failed read is retried from the same byte a few times."""

from __future__ import annotations

import io
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, BinaryIO, TypeVar, cast

from huggingface_hub import HfFileSystem
from huggingface_hub.errors import EntryNotFoundError
from pyarrow import fs

from podwright_training.data.bad_data import DataError, first_line
from podwright_training.data.hub_client import HubConnectionError, token_hint
from podwright_training.data.schemes import HUB, S3

logger = logging.getLogger(__name__)

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before the 2nd … 6th try, each times 0.5 to 1.5 by chance
BUFFER_BYTES = 4 << 20  # one request to a store
PIECE_BYTES = 16 << 10  # the hub's client reads so much more than it is asked for
NETWORK_ERRORS = (OSError, HubConnectionError)
PERMANENT_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

_Result = TypeVar("_Result")


def list_hub(dataset: str, folder: str) -> dict[str, str]:
    """List the files of a dataset on the Hugging Face hub, as ``storage.list_files``."""
    root = f"datasets/{dataset}"
    try:
        names = HfFileSystem().find(f"{root}/{folder}".rstrip("/"))
    except EntryNotFoundError:
        return {}  # the dataset has no such folder
    except NETWORK_ERRORS as error:
        raise DataError(
            f"dataset {dataset!r}: no local folder, and the Hugging Face hub does not serve it to this "
            f"machine ({first_line(error)}){token_hint(error)}"
        ) from error
    return {name.removeprefix(f"{root}/"): f"{HUB}{name}" for name in names}


def list_s3(dataset: str, folder: str) -> dict[str, str]:
    """List the files under ``s3://bucket/folder``, as ``storage.list_files``."""
    root = dataset.removeprefix(S3)
    selector = fs.FileSelector(f"{root}/{folder}".rstrip("/"), recursive=True, allow_not_found=True)
    entries = retry(lambda: _s3(dataset).get_file_info(selector), dataset)
    files = (info.path for info in entries if info.type == fs.FileType.File)
    return {path.removeprefix(f"{root}/"): f"{S3}{path}" for path in files}


def sizes_on_s3(files: Sequence[str]) -> dict[str, int]:
    """Return the bytes of each file, from one listing of the folder that has them all."""
    folder = os.path.commonpath([path.removeprefix(S3).rsplit("/", 1)[0] for path in files])
    selector = fs.FileSelector(folder, recursive=True)
    entries = retry(lambda: _s3(files[0]).get_file_info(selector), f"{S3}{folder}")
    sizes = {f"{S3}{info.path}": int(info.size) for info in entries if info.type == fs.FileType.File}
    return _sizes_of(files, sizes)


def sizes_on_hub(files: Sequence[str]) -> dict[str, int]:
    """Return the bytes of each file, from one listing of the folder that has them all."""
    folder = os.path.commonpath([path.removeprefix(HUB).rsplit("/", 1)[0] for path in files])
    entries = retry(lambda: cast("dict[str, Any]", HfFileSystem().find(folder, detail=True)), f"{HUB}{folder}")
    return _sizes_of(files, {f"{HUB}{name}": int(entry["size"]) for name, entry in entries.items()})


def _sizes_of(files: Sequence[str], sizes: dict[str, int]) -> dict[str, int]:
    if missing := [path for path in files if path not in sizes]:
        raise DataError(f"cannot read {missing[0]}: it is gone")
    return {path: sizes[path] for path in files}


def read_pieces(path: str, places: Sequence[int], size: int) -> list[bytes]:
    """Return ``size`` bytes from each place of a file on S3."""

    def read() -> list[bytes]:
        with _s3(path).open_input_file(path.removeprefix(S3)) as file:
            return [file.read_at(size, place) for place in places]

    return retry(read, path)


def open_remote(path: str) -> BinaryIO:
    """Open a remote file, as ``storage.open_file``."""
    return io.BufferedReader(_RemoteFile(path), BUFFER_BYTES)


def open_unbuffered(path: str) -> BinaryIO:
    """Open a remote file, as ``storage.open_unbuffered``."""
    return cast("BinaryIO", _RemotePieces(path))


def retry(action: Callable[[], _Result], name: str) -> _Result:
    """Return the result of ``action``, retried after network errors; ``name`` is the file it reads.

    Raises:
        DataError: The last attempt failed, or there is no such file.
    """
    for delay_s in RETRY_DELAYS_S:
        try:
            return action()
        except PERMANENT_ERRORS as error:
            raise DataError(f"cannot read {name}: {first_line(error)}") from error
        except NETWORK_ERRORS as error:
            wait_s = delay_s * random.uniform(0.5, 1.5)  # noqa: S311 - so that ranks do not come back all at once
            logger.warning("%s: %s; retrying in %.1f s", name, first_line(error), wait_s)
        time.sleep(wait_s)
    try:
        return action()
    except NETWORK_ERRORS as error:
        raise DataError(f"cannot read {name} in {len(RETRY_DELAYS_S) + 1} attempts: {first_line(error)}") from error


class _RemoteFile(io.RawIOBase):
    """A remote file, reopened at the same byte after an error."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0
        self._file = retry(self._open, path)
        self._size = retry(lambda: self._file.seek(0, io.SEEK_END), path)

    def _open(self) -> BinaryIO:
        return _open(self._path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer; BufferedReader gives views
        content = retry(lambda: self._read(len(buffer)), self._path)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _read(self, size: int) -> bytes:
        try:
            self._file.seek(self._at)
            content: bytes = self._file.read(min(size, self._size - self._at))
        except NETWORK_ERRORS:
            self._file = self._open()
            raise
        if not content and self._at < self._size:
            raise OSError(f"ends at byte {self._at} of {self._size}")
        return content


class _RemotePieces(_RemoteFile):
    """A remote file of which each read is one request, and whole."""

    def _open(self) -> BinaryIO:
        if self._path.startswith(HUB):
            return cast("BinaryIO", HfFileSystem().open(self._path, "rb", block_size=PIECE_BYTES))
        return super()._open()

    def read(self, size: int = -1) -> bytes:
        content = bytearray()
        while piece := super().read(size - len(content) if size >= 0 else -1):
            content += piece
        return bytes(content)


def _open(path: str) -> BinaryIO:
    file: BinaryIO
    if path.startswith(HUB):
        file = HfFileSystem().open(path, "rb", block_size=BUFFER_BYTES)
    else:
        file = _s3(path).open_input_file(path.removeprefix(S3))
    return file


@cache
def _s3_of_bucket(bucket: str) -> fs.FileSystem:
    return fs.FileSystem.from_uri(f"{S3}{bucket}")[0]  # finds the bucket's region


def _s3(path: str) -> fs.FileSystem:
    return _s3_of_bucket(path.removeprefix(S3).split("/")[0])
