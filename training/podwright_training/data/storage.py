"""List and open a dataset's files in a local folder, on S3 or on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import BinaryIO

from podwright_training.data.faults import DataError
from podwright_training.data.schemes import HUB, S3

Listing = dict[str, str]
Share = Callable[[str, Callable[[], Listing]], Listing]
_share: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def shared_listings(share: Share) -> Iterator[None]:
    """List remote datasets with ``share(name, list_them)``: one rank lists, all others get what it found."""
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
    if Path(dataset).is_dir():
        paths = (path for path in (Path(dataset) / folder).rglob("*") if path.is_file())
        return {path.relative_to(dataset).as_posix(): str(path) for path in paths}
    hub_id = not (Path(dataset).is_absolute() or dataset.startswith(".") or dataset.count("/") != 1)
    if not (dataset.startswith(S3) or hub_id):
        raise DataError(
            f"dataset {dataset!r}: neither an existing folder, nor {S3}bucket/folder, nor an identifier of the form "
            "owner/name on the Hugging Face hub"
        )
    share = _share.get()
    list_them = partial(_list_remote, dataset, folder)
    return share(f"{dataset}:{folder}", list_them) if share else list_them()


def _list_remote(dataset: str, folder: str) -> Listing:
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
            return Path(path).open("rb")
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
    from podwright_training.data import remote

    return remote.open_remote(path)


def is_local(path: str) -> bool:
    """Return whether ``path`` is a local file."""
    return not path.startswith((HUB, S3))
