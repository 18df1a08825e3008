"""A rule about mount paths of file systems, buckets and the scratch folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from podwright.check.findings import Finding, KeyPath, error
from podwright.settings.root import Settings
from podwright.settings.storage import NoOpenZfs
from podwright_constructs import checks


def mount_paths(settings: Settings) -> Iterator[Finding]:
    """Two mounts have the same path or nested paths."""
    path_by_mount: dict[str, PurePosixPath] = {}
    for whose, key_path, text in _wanted(settings):
        path = PurePosixPath(text)
        if settings.is_wrong(key_path) or checks.mount_path_problems(text):
            continue  # Another finding says so.
        over = next((f"{name} {other}" for name, other in path_by_mount.items() if _overlap(path, other)), "")
        if over:
            hint = "use a separate path, like /home, /fsx, /scratch or /mnt/data"
            yield error(key_path, f"{key_path[-1]}: {path} and {over} overlap", hint)
        path_by_mount[whose] = path


def _wanted(settings: Settings) -> Iterator[tuple[str, KeyPath, str]]:
    """Yield each mount's name, its path in the file and its path on the nodes."""
    yield "Lustre's", ("lustre", "mount_path"), settings.lustre.mount_path
    if not isinstance(settings.openzfs, NoOpenZfs):
        yield "OpenZFS's", ("openzfs", "mount_path"), settings.openzfs.mount_path
    if settings.nodes.scratch:
        yield "scratch's", ("nodes", "scratch", "mount_path"), settings.nodes.scratch.mount_path
    for index, mount in enumerate(settings.nodes.s3_mounts):
        yield f"s3_mounts[{index}]'s", ("nodes", "s3_mounts", index, "path"), mount.path


def _overlap(path: PurePosixPath, other_path: PurePosixPath) -> bool:
    return path.is_relative_to(other_path) or other_path.is_relative_to(path)
