"""The description of a host: name, address, devices, and its files before any script runs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class File:
    """One file that a host has before any script runs."""

    content: str | bytes
    mode: int = 0o644
    owner: str = "root"

    def to_json(self) -> dict[str, Any]:
        """Return the file as host.py reads it."""
        content = self.content.encode() if isinstance(self.content, str) else self.content
        return {"content": base64.b64encode(content).decode(), "mode": self.mode, "owner": self.owner}


@dataclass(frozen=True)
class HostDescription:
    """Name, address, devices and files of a host, patterns of paths that its image lacks, and folders behind links.

    ``moved`` has new names by path: a folder gets the new name beside it, and a link takes its place.
    """

    hostname: str
    private_ip: str
    accelerators: int = 0
    files: Mapping[str, File] = field(default_factory=dict)
    absent: Sequence[str] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
