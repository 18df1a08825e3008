"""The resources of the synthesized stacks: what ``cdktf deploy`` would make, as data."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from podwright.settings import Settings

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
        """How other resources refer to it."""
        return f"{self.type}.{self.name}"

    def refers_to(self, argument: str) -> tuple[str, ...]:
        """The addresses that an argument names."""
        return tuple(_REFERENCE.findall(json.dumps(self.arguments.get(argument, ""))))


def synthesize(settings: Settings) -> tuple[Resource, ...]:
    """The resources of both stacks, in the order of their paths.

    Raises:
        InvalidArgumentsError: a construct refuses its arguments.
        WheelError: the training program cannot be built.
    """
    for warning in ("DEPRECATED", "END_OF_LIFE"):  # cdktf's Node prints a banner about its age otherwise
        os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")
    from cdktf import App  # noqa: PLC0415 — starts Node

    from stacks.cluster import ClusterStack  # noqa: PLC0415 — loads cdktf
    from stacks.foundation import FoundationStack  # noqa: PLC0415 — as above

    with TemporaryDirectory(prefix="podwright-explain-") as folder:
        app = App(outdir=folder)
        foundation = FoundationStack(app, settings=settings)
        ClusterStack(app, settings=settings, foundation=foundation)
        app.synth()
        stacks = [json.loads(file.read_text("utf-8")) for file in sorted(Path(folder).glob("stacks/*/cdk.tf.json"))]
    found = [resource for stack in stacks for resource in _resources(stack)]
    return tuple(sorted(found, key=lambda resource: resource.path))


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
