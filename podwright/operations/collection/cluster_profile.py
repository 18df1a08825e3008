"""A cluster's profile: files, versions, units and answers by node role, without anything private; a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from podwright.errors import ArgumentError
from podwright.json_document import read_json
from podwright.output_file import write_output

SCHEMA = "podwright.profile/1"
RECORDED = "podwright.operations.collection"  # The package's folder ``data`` has the rehearsal's profile.
Sections = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class ClusterProfile:
    """Values by role, section and key.

    Args:
        nodes: of a controller, a compute node and a login node, as far as the cluster has them.
        api: of SageMaker's answers, by operation.
    """

    nodes: Mapping[str, Sections]
    api: Sections

    def text(self) -> str:
        """Return the profile as JSON."""
        return json.dumps({"schema": SCHEMA, "nodes": self.nodes, "api": self.api}, indent=1, sort_keys=True) + "\n"

    def write(self, path: Path) -> None:
        """Write the profile into a file that only its owner can read.

        Raises:
            OutputError: writing fails.
        """
        write_output(path, self.text(), mode=0o600)

    @classmethod
    def read(cls, path: Path) -> ClusterProfile:
        """Read the profile of a file that ``podwright collect`` wrote.

        Raises:
            ArgumentError: the file cannot be read, or is no profile.
        """
        content = read_json(path, flag="--compare", error_class=ArgumentError)
        profile = cls.parsed(content)
        if profile is None:
            raise ArgumentError(f"--compare {path} is not a profile", "name a file that `podwright collect` wrote")
        return profile

    @classmethod
    def rehearsed(cls) -> ClusterProfile:
        """Return the profile of the rehearsal's hosts of Debian 13, which comes with podwright."""
        text = files(RECORDED).joinpath("data").joinpath("rehearsed.json").read_text(encoding="utf-8")
        content = json.loads(text)
        return cls(content["nodes"], content["api"])

    @classmethod
    def parsed(cls, content: Any) -> ClusterProfile | None:
        """Return the profile in parsed JSON, or None if it has another form."""
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            return None
        nodes, api = content.get("nodes"), content.get("api")
        if isinstance(nodes, dict) and isinstance(api, dict) and all(map(_are_sections, [api, *nodes.values()])):
            return cls(nodes, api)
        return None


def _are_sections(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(section, dict) and all(isinstance(item, str) for item in section.values())
        for section in value.values()
    )
