"""Run the programs of ``on_node`` on a cluster's controller, as root through Session Manager."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from podwright.aws_session import Session
from podwright.errors import OperationError
from podwright.operations.access.remote import quoted
from podwright.operations.account import hyperpod
from podwright.operations.moving.journal import Place
from podwright.operations.nodes.slurm_states import NodeShell, controller_shell

PACKAGE = "podwright.operations.moving.on_node"
READER = "podwright_bootstrap.slurm.listing"  # The programs import it, and a node's copy may be older.
START = """import base64,json,sys,types,zlib
for name, text in json.loads(zlib.decompress(base64.b64decode('{packed}'))):
    sys.modules[name] = module = types.ModuleType(name)
    exec(compile(text, name, 'exec'), module.__dict__)"""


@dataclass(frozen=True)
class Controller:
    """The first running controller of a cluster."""

    shell: NodeShell

    @classmethod
    def of(cls, session: Session, place: Place) -> Controller:
        """Return the first running controller of the cluster at a place.

        Raises:
            OperationError: there is no such cluster, or no controller runs.
        """
        described = hyperpod.find(session, place.name)
        return cls(controller_shell(session, described, hyperpod.nodes(session, described)))

    def call(self, program: str, verb: str, *arguments: object) -> Mapping[str, Any]:
        """Run a program of ``on_node`` and return its results.

        Raises:
            OperationError: no session, or the program failed; the message has its output.
        """
        output = self.shell.run(quoted("python3", "-c", packed(program), verb, *arguments))
        try:
            return dict(json.loads(output.strip().splitlines()[-1]))
        except (ValueError, IndexError) as error:
            printed = " ".join(output.split()) or "nothing"
            raise OperationError(f"{self.shell.node.name} printed no result of {program} {verb}: {printed}") from error


def packed(program: str) -> str:
    """Return the Python that runs a program of ``on_node`` on a host without podwright's packages."""
    top, below, module = READER.split(".")
    reader = files(f"{top}.{below}").joinpath(f"{module}.py").read_text(encoding="utf-8")
    source = files(PACKAGE).joinpath(f"{program}.py").read_text(encoding="utf-8")
    modules = [
        (top, ""),
        (READER, reader),
        # `from PACKAGE import MODULE` looks into the package.
        (f"{top}.{below}", f"import sys; {module} = sys.modules[{READER!r}]"),
        ("__main__", source),
    ]
    return START.format(packed=base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode())
