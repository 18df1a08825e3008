"""Copy checkpoints to and from an object store: ``checkpoint_dir: s3://bucket/prefix``.

Checkpoints are written to the run folder and then copied, so that nothing waits for a slow store and its failure costs
no checkpoint. S3 renames no objects: the manifest is written last and deleted first, and a folder without one does
not count. ``pyarrow`` accesses the store; credentials, region and endpoint are found as AWS's own tools find them.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist
from pyarrow import ArrowInvalid
from pyarrow.fs import (
    FileSelector,
    FileSystem,
    FileType,
    LocalFileSystem,
    copy_files,
)

from podwright_training.checkpoint import manifest, step_folder
from podwright_training.checkpoint.collective_io import CheckpointError, CollectiveIO
from podwright_training.checkpoint.manifest import MANIFEST
from podwright_training.run_folder import commit_folder, place_of

logger = logging.getLogger(__name__)


class Mirror:
    """A run's checkpoints in a store and in a local folder.

    Args:
        url: ``s3://bucket/prefix``.
        directory: The run's folder of checkpoints, shared by all ranks.

    Raises:
        CheckpointError: There is no such kind of store.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url.rstrip("/")
        self._directory = directory
        try:
            self._store, self._prefix = FileSystem.from_uri(self._url)
        except (ArrowInvalid, OSError) as error:
            raise CheckpointError(f"cannot use checkpoint_dir {url}: {_brief(error)}") from error

    def check(self) -> None:
        """List, write and delete an object, as every rank does at once; raise ``CheckpointError`` if that fails."""
        probe = f"{self._prefix}/.probe-{secrets.token_hex(8)}"
        try:
            self._names()
            with self._store.open_output_stream(probe) as stream:
                stream.write(b"podwright")
            self._store.delete_file(probe)
        except OSError as error:
            raise CheckpointError(f"cannot use checkpoint_dir {self._url}: {_brief(error)}") from error

    def newest(self) -> str | None:
        """Return the name of the newest complete checkpoint in the store that is not marked bad."""
        for name in sorted(self._names(), reverse=True):
            if self._exists(f"{name}/{MANIFEST}") and not manifest.mark_in(self._manifest(name)):
                return name
        return None

    def _manifest(self, name: str) -> str:
        with self._store.open_input_stream(f"{self._prefix}/{name}/{MANIFEST}") as stream:
            return str(stream.read(), errors="replace")

    def fetch(self, group: dist.ProcessGroup | None = None) -> None:
        """Copy the newest checkpoint from the store, with all ranks, if it is newer than every local intact one."""
        collective = CollectiveIO(self._directory, group)
        name = collective.first_rank(self._newer_remote)
        if name is None:
            return
        partial = place_of(self._directory / name).with_name(f".{name}.partial")
        collective.first_rank(lambda: _recreate(partial))
        files = collective.first_rank(lambda: sorted(self._files(name)))
        if dist.get_rank() == 0:
            logger.warning("%s has no checkpoint as new as %s in %s: fetching that", self._directory, name, self._url)
        collective.all_ranks(lambda: self._download_files(name, collective.share(files), partial))
        collective.first_rank(lambda: commit_folder(partial, self._directory / name))

    def upload(self, path: Path, *, retained: Iterable[Path], group: dist.ProcessGroup | None = None) -> None:
        """Copy a checkpoint to the store, with all ranks; delete all others there but ``retained``.

        Raises:
            CheckpointError: The copy failed, the same error on every rank; it may work later.
        """
        collective = CollectiveIO(path, group)
        files = sorted(file.name for file in path.iterdir() if file.name != MANIFEST)
        collective.all_ranks(lambda: self._upload_files(path, collective.share(files)))
        collective.first_rank(lambda: self._upload_files(path, [MANIFEST]))
        collective.first_rank(lambda: self._prune({path.name, *(item.name for item in retained)}))

    def _newer_remote(self) -> str | None:
        try:
            newest_remote = self.newest()
        except OSError as error:
            raise CheckpointError(f"cannot read {self._url}: {_brief(error)}") from error
        newest_local = step_folder.newest(self._directory)
        return newest_remote if newest_remote and (newest_local is None or newest_remote > newest_local.name) else None

    def _names(self) -> list[str]:
        entries = self._store.get_file_info(FileSelector(self._prefix, allow_not_found=True))
        return [item.base_name for item in entries if item.base_name.startswith("step-")]

    def _files(self, name: str) -> list[str]:
        return [item.base_name for item in self._store.get_file_info(FileSelector(f"{self._prefix}/{name}"))]

    def _exists(self, name: str) -> bool:
        return bool(self._store.get_file_info(f"{self._prefix}/{name}").type == FileType.File)

    def _upload_files(self, path: Path, files: Iterable[str]) -> None:
        for file in files:
            try:
                copy_files(
                    str(path / file),
                    f"{self._prefix}/{path.name}/{file}",
                    source_filesystem=LocalFileSystem(),
                    destination_filesystem=self._store,
                )
            except OSError as error:
                raise CheckpointError(
                    f"cannot copy {path / file} to {self._url}: {_brief(error)}", passing=True
                ) from error

    def _download_files(self, name: str, files: Iterable[str], target: Path) -> None:
        for file in files:
            try:
                copy_files(
                    f"{self._prefix}/{name}/{file}",
                    str(target / file),
                    source_filesystem=self._store,
                    destination_filesystem=LocalFileSystem(),
                )
            except OSError as error:
                raise CheckpointError(f"cannot copy {self._url}/{name}/{file} to {target}: {_brief(error)}") from error

    def _prune(self, retained_names: set[str]) -> None:
        try:
            for name in set(self._names()) - retained_names:
                if self._exists(f"{name}/{MANIFEST}"):
                    self._store.delete_file(f"{self._prefix}/{name}/{MANIFEST}")
                self._store.delete_dir(f"{self._prefix}/{name}")
        except OSError as error:
            raise CheckpointError(f"cannot delete in {self._url}: {_brief(error)}", passing=True) from error


def _recreate(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0]
