"""The locked requirements: the version of each package, and the sha256 of every allowed file.

A cluster may add packages of its own: their lock follows the line ``ADDED`` in the same file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, Iterator, List, Mapping, Tuple

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PIN = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([A-Za-z0-9.!+_-]+)"  # name and version
    r"\s*(?:;[^#]*?)?(?:\s+--hash=sha256:[0-9a-f]{64})+"  # marker and hashes
)
ADDED = "# Packages that the cluster adds"


@dataclass(frozen=True)
class Requirements:
    """A lock file of ``uv export``: lines ``name==version ; marker --hash=sha256:…``, continued by backslashes.

    It also has what other builds of a package need, such as CUDA's libraries beside a CPU build of torch. So uv
    resolves the wheel's dependencies, and the packages that the cluster adds, with the versions as ``constraints``, and
    installs the result with the hashes.
    """

    constraints: str
    added: str
    sha256: Mapping[str, FrozenSet[str]]  # hashes by normalised project name

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """Read the lock file's text."""
        lines = _lines(text)
        constraints: List[str] = []
        hashes: "dict[str, FrozenSet[str]]" = {}
        for line in lines:
            name = _NAME.match(line)
            if name:
                constraints.append(_HASH.sub("", line).strip())
                key = normalise(name.group())
                hashes[key] = hashes.get(key, frozenset()) | frozenset(_HASH.findall(line))
        added = lines[lines.index(ADDED) :] if ADDED in lines else []
        names = [_HASH.sub("", line).strip() for line in added if _NAME.match(line)]
        return cls("\n".join(constraints) + "\n", "".join(f"{name}\n" for name in names), hashes)

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


def with_added(lock: str, added: str) -> str:
    """Return a lock file with the packages that a cluster adds; one that is in both has the hashes of the first."""
    names = set(Requirements.parse(lock).sha256)
    pins: List[str] = []
    for line in _lines(added):
        name = _NAME.match(line)
        if name:
            pins.append(_HASH.sub("", line).strip() if normalise(name.group()) in names else _continued(line))
    return "\n".join([lock.rstrip(), ADDED, *pins, ""])


def problems_of_added(lock: str, added: str) -> Iterator[str]:
    """Yield what is wrong with the lock file of the packages that a cluster adds, one line each."""
    versions: "dict[str, List[str]]" = {}
    for match in filter(None, map(_PIN.match, _lines(lock))):
        versions.setdefault(normalise(match[1]), []).append(match[2])
    lines = [line.partition(" #")[0].rstrip() for line in _lines(added) if line and not line.startswith("#")]
    if not lines:
        yield "got no package, need lines NAME==VERSION with --hash=sha256:…"
    for line in lines:
        pin = _PIN.fullmatch(line)
        if not pin:
            yield f"got {line[:60]}, need NAME==VERSION with --hash=sha256:…"
            continue
        tested = versions.get(normalise(pin[1]), [pin[2]])
        if pin[2] not in tested:
            yield f"got {pin[1]} {pin[2]}, but the training program is tested with {' or '.join(tested)}"


def _continued(line: str) -> str:
    """Return a pin with each hash on a line of its own."""
    return re.sub(r"\s+--hash=", " \\\\\n    --hash=", line)


def _lines(text: str) -> List[str]:
    """Return the lines of a lock file, with those joined that a backslash continues."""
    return [line.strip() for line in text.replace("\\\n", " ").splitlines()]


def normalise(name: str) -> str:
    """Return a project's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
