"""The lifecycle scripts as HyperPod downloads them: ``on_create.sh`` and one archive of everything it runs.

The archive has the scripts' package ``podwright_bootstrap``, and the installed ``podwright_common``, which it imports.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import podwright_common
from podwright_constructs.problems import Problem

ENTRYPOINT = "on_create.sh"
PACKAGE = "podwright_bootstrap"
ARCHIVE = f"{PACKAGE}.tar"
CODE = {".py", ".json"}
SHA256_LINE = re.compile(rb"^archive_sha256=$", re.MULTILINE)  # empty in the repository


def problems(scripts: Path) -> Iterator[Problem]:
    """Report problems that prevent packing a folder of scripts."""
    entrypoint = scripts / ENTRYPOINT
    if not entrypoint.is_file():
        yield Problem("missing", ("scripts",), scripts, f"a folder with {ENTRYPOINT} in it")
    elif b"\r" in entrypoint.read_bytes():
        hint = "Linux does not find an interpreter whose name ends in a carriage return."
        yield Problem("malformed", ("scripts",), entrypoint, "Unix line endings", hint)
    elif len(SHA256_LINE.findall(entrypoint.read_bytes())) != 1:
        hint = "Synthesis writes the archive's SHA-256 there, and the script verifies it before it runs anything."
        yield Problem("malformed", ("scripts",), entrypoint, "a script with one line `archive_sha256=`", hint)
    if not (scripts / PACKAGE / "__main__.py").is_file():
        yield Problem("missing", ("scripts",), scripts, f"a folder with the package {PACKAGE} in it")


def pack(scripts: Path, *, into: Path) -> Path:
    """Write the entrypoint and the archive into a folder below ``into`` and return it.

    The folder is named by the SHA-256 of the entrypoint, which contains the archive's. The same scripts give the same
    bytes on every machine: the order is sorted; dates, owners and modes are fixed; and the archive is not compressed,
    because zlib's output differs between its versions. The folder appears by one rename.
    """
    archive = _archive(scripts)
    line = b"archive_sha256=" + hashlib.sha256(archive).hexdigest().encode()
    entrypoint = SHA256_LINE.sub(line, (scripts / ENTRYPOINT).read_bytes())
    folder = into.resolve() / hashlib.sha256(entrypoint).hexdigest()
    if not folder.is_dir():
        _write(folder, {ENTRYPOINT: entrypoint, ARCHIVE: archive})
    return folder


def _archive(scripts: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for package in (scripts / PACKAGE, Path(podwright_common.__file__).parent):
            for file in _files(package):
                # Owned by root, with mode 0644, of 1970.
                member = tarfile.TarInfo(file.relative_to(package.parent).as_posix())
                code = file.read_bytes()
                member.size = len(code)
                archive.addfile(member, io.BytesIO(code))
    return content.getvalue()


def _files(package: Path) -> Iterable[Path]:
    """The package's modules and data; caches and typing marks stay here."""
    return sorted(file for file in package.rglob("*") if file.suffix in CODE)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        unfinished = Path(temporary) / folder.name
        unfinished.mkdir()
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # another synthesis was first
                raise
