"""List and open a dataset's files in a local folder, on S3 or on the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import BinaryIO

from podwright_common.regular_file import open_regular
from podwright_training.data.bad_data import DataError
from podwright_training.data.schemes import HUB, S3

LOST_AND_FOUND = "lost+found"  # folder of a file system's repair, which only root may read
Listing = dict[str, str]
Share = Callable[[str, Callable[[], Listing]], Listing]
_share: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def shared_listings(share: Share) -> Iterator[None]:
    """List datasets with ``share(name, list_them)``: one rank lists, all others get its result."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


def list_files(dataset: str, folder: str = "") -> Listing:
    """Return all files under ``folder`` of ``dataset``: path in the dataset → path or URL to open.

    Raises:
        DataError: There is no such dataset, or its store is unreachable.
    """
    return shared(f"{dataset}:{folder}", partial(_list, dataset, folder))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of folders linked in it, each folder once; also broken links.

    A link to a folder around this one is not followed: its other files belong to others.

    Raises:
        DataError: A folder is unreadable, unless it can have no data: it is hidden, or the ``lost+found`` of a volume.
    """
    if not folder.is_dir():
        return
    visited: set[str] = set()
    root = Path(os.path.realpath(folder))
    for name, folders, files in os.walk(folder, followlinks=True, onerror=partial(_refuse_unreadable, folder)):
        real_path = os.path.realpath(name)
        if real_path in visited or Path(real_path) in root.parents:
            folders.clear()
            continue
        visited.add(real_path)
        folders.sort()
        paths = (Path(name) / file for file in sorted(files))
        try:
            yield from [path for path in paths if path.is_file() or path.is_symlink()]
        except OSError as error:
            _refuse_unreadable(folder, error)


def _refuse_unreadable(root: Path, error: OSError) -> None:
    """Raise ``DataError`` for a folder or file below ``root`` that may have data and cannot be read."""
    parts = Path(error.filename).relative_to(root).parts
    if not any(part.startswith(".") or part == LOST_AND_FOUND for part in parts):
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}; make it readable, or move it out of {root}"
        ) from error


def shared(name: str, action: Callable[[], Listing]) -> Listing:
    """Return the result of ``action``, which within ``shared_listings`` the first rank runs for all ranks."""
    share = _share.get()
    return share(name, action) if share else action()


def sizes_of(files: Sequence[str]) -> dict[str, int]:
    """Return the bytes of each file, all in one store.

    Raises:
        DataError: A file does not exist, or the store is unreachable.
    """
    if not is_local(files[0]):
        from podwright_training.data import remote

        return remote.sizes_on_s3(files) if files[0].startswith(S3) else remote.sizes_on_hub(files)
    try:
        return {file: Path(file).stat().st_size for file in files}
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def read_pieces(file: str, places: Sequence[int], size: int) -> list[bytes]:
    """Return ``size`` bytes from each place of a local file or one on S3, each in one request.

    Raises:
        DataError: Reading the file fails.
    """
    if not is_local(file):
        from podwright_training.data import remote

        return remote.read_pieces(file, places, size)
    try:
        with open_regular(Path(file), follow_links=True) as content:
            return [os.pread(content.fileno(), size, place) for place in places]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def _list(dataset: str, folder: str) -> Listing:
    if Path(dataset).is_dir():
        paths = files_below(Path(dataset) / folder)
        return {path.relative_to(dataset).as_posix(): str(path) for path in paths}
    hub_id = not (Path(dataset).is_absolute() or dataset.startswith(".") or dataset.count("/") != 1)
    if not (dataset.startswith(S3) or hub_id):
        raise DataError(
            f"dataset {dataset!r}: neither an existing folder, nor {S3}bucket/folder, nor an identifier of the form "
            "owner/name on the Hugging Face hub"
        )
    from podwright_training.data import remote  # its libraries take a second to import

    if dataset.startswith(S3):
        return remote.list_s3(dataset.removesuffix("/"), folder)
    return remote.list_hub(dataset, folder)


def open_file(path: str) -> BinaryIO:
    """Open a file from ``list_files`` for reading and seeking.

    Raises:
        DataError: The file does not exist or is not readable; also later, when reads keep failing.
    """
    if is_local(path):
        try:
            return open_regular(Path(path), follow_links=True)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
    from podwright_training.data import remote

    return remote.open_remote(path)


def open_unbuffered(path: str) -> BinaryIO:
    """Open a file from ``list_files`` to read single pieces of it: a remote file in one request each.

    Raises:
        DataError: As ``open_file``.
    """
    if is_local(path):
        return open_file(path)
    from podwright_training.data import remote

    return remote.open_unbuffered(path)


def has_index(path: str, index: Path) -> bool:
    """Return whether a local file of tokens has an index.

    Raises:
        DataError: The index is a link to nothing or no file, so that the tokens would be read as plain ones.
    """
    if not os.path.lexists(index):
        return False
    if not index.is_file():
        kind = "a link to nothing" if index.is_symlink() else "no regular file"
        raise DataError(f"{index}, the index of {path}, is {kind}: copy it again, or remove it if {path} has no index")
    return True


def is_local(path: str) -> bool:
    """Return whether ``path`` is a local file."""
    return not path.startswith((HUB, S3))
