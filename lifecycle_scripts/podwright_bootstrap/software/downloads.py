"""Programs that an image may lack: each is named in ``downloads.json`` with its checksum, and fetched once a cluster.

The first node that takes the lock on the shared file system fetches; whoever uses a file compares its checksum again.
"""

from __future__ import annotations

import errno
import json
import platform
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

from podwright_bootstrap import contract
from podwright_bootstrap.aws import s3
from podwright_bootstrap.features import NodeFeatures
from podwright_bootstrap.host import log, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.storage.lock import locked
from podwright_common.atomic_file import rename_durably
from podwright_common.checksum import sha256_of

ENROOT = ("enroot", "enroot-caps")
MANIFEST = Path(__file__).with_suffix(".json")
FETCH_LIMIT_S = 900  # waiting for the node that fetches
SILENCE_LIMIT_S = 60  # A server that sends nothing for so long has failed.
ATTEMPTS = 5
BLOCK_BYTES = 1 << 20
FULL = {errno.ENOSPC, errno.EDQUOT}
BUNDLE_HINT = "make it again where you deploy: podwright bundle --upload"

Identity = Optional[Tuple[int, int]]


@dataclass(frozen=True)
class Download:
    """One file of the manifest."""

    name: str
    url: str
    sha256: str

    @property
    def filename(self) -> str:
        """As its page calls it."""
        return self.url.rsplit("/", 1)[-1]


def manifest() -> Dict[str, Dict[str, Download]]:
    """All files by name, then by machine as ``uname -m`` calls it."""
    entries = json.loads(MANIFEST.read_text())
    return {name: _files(name, entry["files"]) for name, entry in entries.items()}


def find(name: str) -> Download:
    """Return the file of that name for this machine; ``BootstrapError`` if it does not exist."""
    machine = platform.machine()
    download = manifest()[name].get(machine)
    if download is None:
        raise BootstrapError(f"podwright has no checksum of {name} for {machine}", hint=f"use an image that has {name}")
    return download


def from_bundle(node: Node) -> bool:
    """Return whether the cluster takes files from its bucket only, not from the internet."""
    settings = node.parameters.nodes.downloads
    return settings is not None and settings.source == "bundle"


def fetch(name: str, node: Node) -> Path:
    """Fetch the file of that name for this machine, and check the manifest's checksum.

    Raises:
        BootstrapError: there is no file for this machine, the download failed, or the checksum differs.
    """
    return fetch_file(find(name), node)


def fetch_file(download: Download, node: Node) -> Path:
    """Fetch the file, and check its checksum.

    Raises:
        BootstrapError: the download failed, or the checksum differs.
    """
    path = _folder(node) / download.filename
    earlier = _identity(path)
    if _is(path, download):
        return path
    lock = path.with_name(f".{path.name}.lock")

    def fetched() -> bool:
        return _identity(path) not in {None, earlier}

    with locked(lock, limit_s=FETCH_LIMIT_S, every_s=node.poll_s, unless=fetched) as mine:
        if mine and not _is(path, download):
            if path.exists():
                log.say(f"{path} has another checksum: downloading it again")
            _download(download, path, node)
    if not _is(path, download):
        hint = f"only root may write to {path.parent}: check its owner and mode"
        raise BootstrapError(f"{path} changed after it was fetched", hint=hint)
    return path


def needed(nodes: NodeFeatures, *, sends: bool, trains: bool) -> List[str]:
    """Return the files that nodes with these features may fetch.

    Args:
        nodes: the features.
        sends: whether there is a workspace for metrics.
        trains: whether the nodes build the training environment.
    """
    names = ["uv"] if trains else []
    if nodes.containers and nodes.containers.enroot:
        names += [*ENROOT, "pyxis"]
    if nodes.containers:
        names += ["libnvidia-container1", "libnvidia-container-tools"]
        names += ["nvidia-container-toolkit-base", "nvidia-container-toolkit"] if nodes.containers.docker else []
    names += ["mount-s3"] if nodes.s3_mounts else []
    if nodes.observability:
        names += ["node_exporter", *(["prometheus"] if sends else [])]
    return names


def fetch_wheels(folder: Path, node: Node) -> None:
    """Copy the offline bundle's wheels; raises ``BootstrapError`` if it has none."""
    uri = f"{node.parameters.bundle_s3_uri}/wheels/"
    s3.copy(uri, folder, region=node.parameters.region, recursive=True)
    if not any(folder.glob("*.whl")):
        raise BootstrapError(f"the offline bundle has no wheels: {uri}", hint=BUNDLE_HINT)


def from_internet(url: str, part: Path) -> None:
    """Continue where an earlier attempt, of this node or a dead one, stopped."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 (manifest)
    log.say(f"fetching {url}" + (f" from byte {have}" if have else ""))
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_LIMIT_S) as answer:  # noqa: S310 (manifest)
            resumed = answer.status == 206  # noqa: PLR2004 (Partial Content)
            length = answer.headers.get("Content-Length")
            with part.open("ab" if resumed else "wb") as file:
                start = file.tell()
                for block in iter(lambda: answer.read(BLOCK_BYTES), b""):
                    file.write(block)
                if length and file.tell() - start != int(length):
                    raise ConnectionError(f"{file.tell() - start} of {length} bytes were received")
    except HTTPException as error:
        raise ConnectionError(f"{url} broke off: {error}") from error
    except urllib.error.HTTPError as error:
        part.unlink(missing_ok=True)  # 416: there is more than the server has
        raise OSError(f"the server answers {error.code} {error.reason}") from error
    except OSError as error:
        if error.errno in FULL:
            part.unlink(missing_ok=True)
            raise BootstrapError(f"no space for {url} at {part.parent}: {error}", hint="df -h shows it") from error
        raise


def _files(name: str, entries: Mapping[str, Mapping[str, str]]) -> Dict[str, Download]:
    return {machine: Download(name, file["url"], file["sha256"]) for machine, file in entries.items()}


def _folder(node: Node) -> Path:
    """Return the cluster's folder; this node's own if it has no shared file system."""
    return node.shared(contract.DOWNLOADS_DIRECTORY) if node.has_shared else contract.STATE_DIRECTORY / "downloads"


def _is(path: Path, download: Download) -> bool:
    return path.is_file() and sha256_of(path) == download.sha256


def _identity(path: Path) -> Identity:
    """Return an identity of the file's version without reading the file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _download(download: Download, path: Path, node: Node) -> None:
    """Fetch under a temporary name, compare, make it durable, rename."""
    part = path.with_name(f".{path.name}.part")
    bundled = from_bundle(node)
    try:
        if bundled:
            source = f"{node.parameters.bundle_s3_uri}/files/{download.filename}"
            _from_bundle(source, part, node.parameters.region)
        else:
            source = download.url
            waits.retry(partial(from_internet, source, part), attempts=ATTEMPTS, pause_s=5, errors=(OSError,))
    except OSError as error:
        raise BootstrapError(f"{source} is out of reach: {error}", hint=_hint(error)) from error
    sha256 = sha256_of(part)
    if sha256 != download.sha256:
        part.unlink()
        raise BootstrapError(
            f"{source} has sha256 {sha256}, need {download.sha256}: the file was removed",
            hint=BUNDLE_HINT if bundled else "does a proxy answer in its place?",
        )
    rename_durably(part, path)


def _from_bundle(uri: str, part: Path, region: str) -> None:
    try:
        s3.copy(uri, part, region=region)
    except CommandError as error:
        raise BootstrapError(f"the offline bundle lacks {uri}: {error}", hint=BUNDLE_HINT) from error


def _hint(error: OSError) -> str:
    if error.errno in FULL:
        return "df -h shows which disk is full"
    return (
        "give the node internet access, or set nodes.downloads to {source: bundle} and run: podwright bundle --upload"
    )
