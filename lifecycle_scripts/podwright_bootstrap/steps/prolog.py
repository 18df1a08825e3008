"""The programs that Slurm runs on a node before and after a job.

They run from a copy of this package on the node (``software/installed_copy.py``). slurmctld sends nodes a program that
runs all of a folder, so that nodes may have further programs, or none.

https://slurm.schedmd.com/prolog_epilog.html
https://slurm.schedmd.com/slurm.conf.html#OPT_Prolog
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import COMPUTE
from podwright_bootstrap.host import files, process
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import epilog, prolog
from podwright_bootstrap.slurm.own_part import PROGRAMS
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

MODULES = {"prolog": prolog.__name__, "epilog": epilog.__name__}
# Who may use crontab(1) and at(1), whose programs would run outside of jobs.
ALLOWED = (Path("/etc/cron.allow"), Path("/etc/at.allow"))
NOBODY_ELSE = "root\n"
LIMITS_S = {"prolog": 120, "epilog": 360}
# For Slurm before 24.11, which has patterns, and for a controller that still has them from an older boot: Slurm drains
# a node whose pattern matches no program, "Unable to create list of paths".
NOTHING_TO_DO = "#!/bin/sh\n# Written by podwright's bootstrap.\nexit 0\n"
ENDS = {"prolog": "", "epilog": " || true"}  # an epilog that fails drains the node, also one that takes too long


class PrologStep(Step):
    """Slurm checks a node before each job, drains it if it is faulty, and removes leftovers of jobs."""

    name = "prolog"
    audience = "compute nodes of clusters with nodes.prolog or nodes.containers.enroot"
    hint = f"look at {PROGRAMS['prolog'].parent} on the node"
    time_limit_s = 900

    def applies(self, node: Node) -> bool:
        """Run on nodes that need checks, or folders of jobs or containers."""
        return node.parameters.nodes.has_prolog and node.role == COMPUTE

    def apply(self, node: Node) -> Iterator[str]:
        """Write the programs; step slurm_conf names them on the controller."""
        return _install(node)

    def remove(self, node: Node) -> Iterator[str]:
        """Let the programs do nothing: the controller may boot later than this node, and names them until then."""
        for program in PROGRAMS.values():
            if program.exists() and files.write_file(program, NOTHING_TO_DO, mode=0o755):
                yield f"made {program} do nothing"
        our_files = [path for path in ALLOWED if path.exists() and path.read_text() == NOBODY_ELSE]
        yield from files.remove_files(*our_files)

    def verify(self, node: Node) -> None:
        """The node passes its own check."""
        if _wanted_programs(node)["prolog"]:
            outcome = process.run(PROGRAMS["prolog"], "--only-check", timeout_s=LIMITS_S["prolog"], check=False)
            if outcome.exit_code:
                last_line = (outcome.lines or ["it printed nothing"])[-1]
                raise CommandError(f"this node would fail its own prolog: {last_line}")


def _install(node: Node) -> Iterator[str]:
    yield from installed_copy.install()
    for name, is_enabled in _wanted_programs(node).items():
        if files.write_file(PROGRAMS[name], _program(name) if is_enabled else NOTHING_TO_DO, mode=0o755):
            yield f"wrote {PROGRAMS[name]}"
    if node.parameters.nodes.prolog and node.parameters.nodes.prolog.clean:
        for path in ALLOWED:
            if not path.exists() and files.write_file(path, NOBODY_ELSE, mode=0o644):
                yield f"wrote {path}"


def _wanted_programs(node: Node) -> Dict[str, bool]:
    nodes = node.parameters.nodes
    if nodes.prolog is None:
        return {"prolog": nodes.runs_containers, "epilog": False}
    folder = nodes.prolog.job_folder and node.scratch is not None
    gpus = nodes.observability is not None and node.facts.accelerator == "gpu"
    either = folder or gpus
    return {"prolog": nodes.prolog.check or either or nodes.runs_containers, "epilog": nodes.prolog.clean or either}


def _program(name: str) -> str:
    """Slurm gives its programs no search path."""
    path = f"{contract.SLURM_ROOT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    python = Path(sys.executable)
    return (
        f"#!/bin/sh\n# Written by podwright's bootstrap.\n"
        f"export PATH={path} PYTHONPATH={installed_copy.FOLDER} PYTHONDONTWRITEBYTECODE=1\n"
        f"cd /\n"  # Python looks for modules in the folder it is started in
        f'timeout --kill-after=5 {LIMITS_S[name]} {python} -m {MODULES[name]} "$@"{ENDS[name]}\n'
    )
