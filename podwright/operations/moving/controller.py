"""Run the programs of ``on_node`` on a cluster's controller, as root through Session Manager."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from podwright.operations.access.remote import quoted
from podwright.operations.account import cluster
from podwright.operations.account.session import Session
from podwright.operations.errors import OperationError
from podwright.operations.moving.journal import Place
from podwright.operations.nodes.slurm_states import ControllerShell, controller_shell

PACKAGE = "podwright.operations.moving.on_node"


@dataclass(frozen=True)
class Controller:
    """The first running controller of a cluster."""

    shell: ControllerShell

    @classmethod
    def of(cls, session: Session, place: Place) -> Controller:
        """Find it.

        Raises:
            OperationError: there is no such cluster, or no controller runs.
        """
        found = cluster.find(session, place.name)
        return cls(controller_shell(session, found, cluster.nodes(session, found)))

    def call(self, program: str, verb: str, *arguments: object) -> Mapping[str, Any]:
        """Run a program of ``on_node`` and return its results.

        Raises:
            OperationError: no session, or the program failed; the message has what it said.
        """
        source = files(PACKAGE).joinpath(f"{program}.py").read_bytes()
        packed = base64.b64encode(zlib.compress(source, 9)).decode()
        start = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
        output = self.shell.run(quoted("python3", "-c", start, verb, *arguments))
        try:
            return dict(json.loads(output.strip().splitlines()[-1]))
        except (ValueError, IndexError) as error:
            said = " ".join(output.split()) or "nothing"
            raise OperationError(f"{self.shell.node.name} answered {program} {verb} with {said}") from error
