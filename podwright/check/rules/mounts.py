"""A rule about mount paths of file systems, buckets and the scratch folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from podwright.check.findings import Finding, KeyPath, error
from podwright.settings.root import Settings
from podwright.settings.storage import NoOpenZfs

SYSTEM_NAMES = ("bin", "boot", "dev", "etc", "lib", "opt", "proc", "root", "run", "sbin", "sys", "usr", "var")
SYSTEM = [PurePosixPath("/", name) for name in SYSTEM_NAMES]


def mount_paths(settings: Settings) -> Iterator[Finding]:
    """A mount hides a system folder, or two mounts have the same path or nested paths."""
    taken: dict[str, PurePosixPath] = {}
    for whose, key_path, text in _wanted(settings):
        path = PurePosixPath(text)
        if not path.is_absolute() or path == PurePosixPath("/"):
            continue  # the rule of what is mounted says so
        hidden = next((f"hides {folder}" for folder in SYSTEM if folder.is_relative_to(path)), "")
        over = (f"and {name} {other} overlap" for name, other in taken.items() if _overlap(path, other))
        if problem := hidden or next(over, ""):
            yield error(
                key_path,
                f"{key_path[-1]}: {path} {problem}",
                "use a separate path, like /home, /fsx, /scratch or /mnt/data",
            )
        taken[whose] = path


def _wanted(settings: Settings) -> Iterator[tuple[str, KeyPath, str]]:
    """Yield each mount's name, its path in the file and its path on the nodes."""
    yield "Lustre's", ("lustre", "mount_path"), settings.lustre.mount_path
    if not isinstance(settings.openzfs, NoOpenZfs):
        yield "OpenZFS's", ("openzfs", "mount_path"), settings.openzfs.mount_path
    if settings.nodes.scratch:
        yield "scratch's", ("nodes", "scratch", "mount_path"), settings.nodes.scratch.mount_path
    for index, mount in enumerate(settings.nodes.s3_mounts):
        yield f"s3_mounts[{index}]'s", ("nodes", "s3_mounts", index, "path"), mount.path


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
