"""What makes a host: its name, its address, its devices, and the files it has before any script runs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class File:
    """One file that a host has before any script runs."""

    content: str | bytes
    mode: int = 0o644
    owner: str = "root"

    def to_json(self) -> dict[str, Any]:
        """For host.py."""
        content = self.content.encode() if isinstance(self.content, str) else self.content
        return {"content": base64.b64encode(content).decode(), "mode": self.mode, "owner": self.owner}


@dataclass(frozen=True)
class HostDescription:
    """What makes a host: its name, its address, its devices, its files."""

    hostname: str
    private_ip: str
    accelerators: int = 0
    files: Mapping[str, File] = field(default_factory=dict)
