"""The locked requirements: which version of what may be installed, and the sha256 of every file that may be it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Requirements:
    """A lock file of ``uv export``: lines ``name==version ; marker --hash=sha256:…``, continued by backslashes.

    pip cannot use it as constraints: it takes hashes there for ``--require-hashes`` and then refuses every package
    (seen with pip 23.0). So the versions go to pip as ``constraints`` and the hashes are compared here.
    """

    constraints: str
    sha256: Mapping[str, frozenset[str]]  # by normalised project name

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """Read the lock file's text."""
        lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        constraints: list[str] = []
        hashes: dict[str, frozenset[str]] = {}
        for line in lines:
            name = _NAME.match(line)
            if name:
                constraints.append(_HASH.sub("", line).strip())
                key = normalise(name.group())
                hashes[key] = hashes.get(key, frozenset()) | frozenset(_HASH.findall(line))
        return cls("\n".join(constraints) + "\n", hashes)

    def strangers(self, wheels: list[Path]) -> list[str]:
        """Those of the wheels that the lock does not know, each with what is wrong."""
        problems = []
        for wheel in wheels:
            allowed = self.sha256.get(normalise(wheel.name.split("-")[0]))
            if allowed is None:
                problems.append(f"{wheel.name} is not in the lock")
            elif sha256_of(wheel) not in allowed:
                problems.append(f"{wheel.name} has sha256 {sha256_of(wheel)}, which the lock does not list")
        return problems


def normalise(name: str) -> str:
    """A project's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: Path) -> str:
    """The file's checksum in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
