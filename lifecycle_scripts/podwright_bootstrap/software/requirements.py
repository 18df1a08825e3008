"""The locked requirements: the version of each package, and the sha256 of every allowed file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, List, Mapping, Tuple

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Requirements:
    """A lock file of ``uv export``: lines ``name==version ; marker --hash=sha256:…``, continued by backslashes.

    It also has what other builds of a package need, such as CUDA's libraries beside a CPU build of torch. So uv
    resolves the wheel's dependencies with the versions as ``constraints``, and installs the result with the hashes.
    """

    constraints: str
    sha256: Mapping[str, FrozenSet[str]]  # hashes by normalised project name

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """Read the lock file's text."""
        lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        constraints: List[str] = []
        hashes: "dict[str, FrozenSet[str]]" = {}
        for line in lines:
            name = _NAME.match(line)
            if name:
                constraints.append(_HASH.sub("", line).strip())
                key = normalise(name.group())
                hashes[key] = hashes.get(key, frozenset()) | frozenset(_HASH.findall(line))
        return cls("\n".join(constraints) + "\n", hashes)

    def with_hashes(self, resolved: str) -> Tuple[str, List[str]]:
        """Add the lock's hashes to lines ``name==version``; return the text, and the packages without a hash."""
        lines: List[str] = []
        unknown: List[str] = []
        for line in resolved.splitlines():
            name = _NAME.match(line)
            if not name:
                continue
            pin = line.split(";")[0].strip()
            hashes = sorted(self.sha256.get(normalise(name.group()), ()))
            lines.append(" ".join([pin, *(f"--hash=sha256:{item}" for item in hashes)]))
            if not hashes:
                unknown.append(pin)
        return "".join(f"{line}\n" for line in lines), unknown


def normalise(name: str) -> str:
    """Return a project's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
