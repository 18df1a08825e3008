"""The resources of the synthesized stacks, as data: ``cdktf deploy`` would create them.

They are read from ``cdk.tf.json``, so that the picture cannot differ from the deployment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ENCODED = re.compile(r"\$\{jsonencode\((.*)\)\}", re.DOTALL)
_TOKEN = re.compile(
    r"""\s+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?\b|[{}\[\],=]|true|false|null
    |[A-Za-z_][\w.-]*(?:\[[^\]]*\][\w.-]*)*  # a reference, with indices""",
    re.VERBOSE,
)
_REFERENCE = re.compile(r"\$\{(?:data\.)?(\w+\.\w[\w-]*)")


@dataclass(frozen=True)
class Resource:
    """One Terraform resource: its address is ``TYPE.NAME``, its path that of the construct, without the stack."""

    type: str
    name: str
    path: str
    arguments: Mapping[str, Any]

    @property
    def address(self) -> str:
        """The address that other resources refer to."""
        return f"{self.type}.{self.name}"

    def refers_to(self, argument: str) -> tuple[str, ...]:
        """The addresses that an argument names."""
        return tuple(_REFERENCE.findall(json.dumps(self.arguments.get(argument, ""))))


def read(folder: Path) -> tuple[Resource, ...]:
    """Return the resources of all stacks that cdktf wrote into a folder, in the order of their paths."""
    stacks = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("stacks/*/cdk.tf.json"))]
    resources = [resource for stack in stacks for resource in _resources(stack)]
    return tuple(sorted(resources, key=lambda resource: resource.path))


def _resources(stack: Mapping[str, Any]) -> Iterator[Resource]:
    for kind, by_name in stack.get("resource", {}).items():
        for name, block in by_name.items():
            path = block["//"]["metadata"]["path"].partition("/")[2]
            yield Resource(kind, name, path, {key: value for key, value in block.items() if key != "//"})


def decoded(argument: str) -> Any:
    """The data of a ``${jsonencode(…)}``: Terraform's object syntax; a reference becomes its text."""
    match = _ENCODED.fullmatch(argument)
    return json.loads("".join(map(_as_json, _TOKEN.findall(match[1] if match else argument))))


def _as_json(word: str) -> str:
    if word == "=":
        return ":"
    plain = word.isspace() or word[0] in '"{}[],' or re.fullmatch(r"-?\d+(\.\d+)?|true|false|null", word)
    return word if plain else json.dumps(word)
