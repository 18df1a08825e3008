"""The programs that Slurm runs on a node before and after a job.

https://slurm.schedmd.com/prolog_epilog.html
https://slurm.schedmd.com/slurm.conf.html#OPT_Prolog
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import COMPUTE, CONTROLLER
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import epilog, prolog, slurm_conf
from podwright_bootstrap.slurm.slurm_conf import SCONTROL, SLURM_CONF
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

# Slurm runs all that match, in order, and nothing where nothing does: a node without them takes jobs as ever.
PROGRAMS = {name: contract.STATE_DIRECTORY / f"{name}.d" / "50-podwright.sh" for name in ("prolog", "epilog")}
MODULES = {"prolog": prolog.__name__, "epilog": epilog.__name__}
LIMITS_S = {"prolog": 120, "epilog": 300}
OUR_PART = SLURM_CONF.with_name("podwright-prolog.conf")
INCLUDE = f"include {OUR_PART.name}"  # relative, or a configless controller does not send it


class Prolog(Step):
    """Slurm checks a node before each job, drains it if it is not sound, and clears away what a job leaves."""

    name = "prolog"
    whose = "controllers and compute nodes of clusters with nodes.prolog"
    hint = f"look at {OUR_PART} on the controller and at {contract.STATE_DIRECTORY}/prolog.d on the node"
    time_limit_s = 900

    def applies(self, node: Node) -> bool:
        """Run with nodes.prolog."""
        return node.parameters.nodes.prolog is not None and node.role in {CONTROLLER, COMPUTE}

    def apply(self, node: Node) -> Iterator[str]:
        """The programs on compute nodes, their names on the controller."""
        return _configure() if node.role == CONTROLLER else _install(node)

    def verify(self, node: Node) -> None:
        """The node passes its own check; the controller reads the names."""
        if node.role == CONTROLLER:
            if INCLUDE not in SLURM_CONF.read_text().splitlines():
                raise BootstrapError(f"{SLURM_CONF} does not {INCLUDE}")
        elif _wanted_programs(node)["prolog"]:
            asked = shell.run(PROGRAMS["prolog"], "--only-check", timeout_s=LIMITS_S["prolog"], check=False)
            if asked.exit_code:
                last = (asked.lines or ["it printed nothing"])[-1]
                raise CommandError(f"this node would fail its own prolog: {last}")


def _install(node: Node) -> Iterator[str]:
    yield from installed_copy.install()
    for name, wanted in _wanted_programs(node).items():
        program = PROGRAMS[name]
        if wanted and shell.write_file(program, _program(name), mode=0o755):
            yield f"wrote {program}"
        elif not wanted and program.exists():
            program.unlink()
            yield f"removed {program}"


def _wanted_programs(node: Node) -> Dict[str, bool]:
    wanted = node.parameters.nodes.prolog
    if wanted is None:
        return dict.fromkeys(PROGRAMS, False)
    folder = wanted.job_folder and node.scratch is not None
    return {"prolog": wanted.check or folder, "epilog": wanted.clean or folder}


def _program(name: str) -> str:
    """Slurm gives its programs no search path."""
    path = f"{contract.SLURM_ROOT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    python = Path(sys.executable)
    return (
        f"#!/bin/sh\n# Written by podwright's bootstrap.\n"
        f"export PATH={path} PYTHONPATH={installed_copy.FOLDER} PYTHONDONTWRITEBYTECODE=1\n"
        f'exec timeout --kill-after=5 {LIMITS_S[name]} {python} -m {MODULES[name]} "$@"\n'
    )


def _configure() -> Iterator[str]:
    slurm_conf.wait()
    text = SLURM_CONF.read_text()
    changed = shell.write_file(OUR_PART, _our_part())
    if changed:
        yield f"wrote {OUR_PART}"
    if INCLUDE not in text.splitlines():
        changed = slurm_conf.write(SLURM_CONF, f"{text.rstrip()}\n{INCLUDE}\n")
        yield f"included {OUR_PART.name} in {SLURM_CONF}"
    running = shell.run("systemctl", "is-active", "slurmctld", timeout_s=30, check=False, quiet=True)
    if changed and running.exit_code == 0:
        shell.run(SCONTROL, "reconfigure", timeout_s=60)
        yield "reconfigured slurmctld"


def _our_part() -> str:
    """Of a key that is given twice, Slurm takes the last: what the service gave to it is repeated here."""
    for key in ("Prolog", "Epilog"):
        given = slurm_conf.values(key)[-1:]
        if given:
            raise BootstrapError(
                f"{SLURM_CONF} has {key}={given[-1]} already",
                hint=f"put that program into {PROGRAMS[key.lower()].parent} of the nodes and take the line away, "
                "or leave nodes.prolog out of cluster.yaml",
            )
    flags = [*slurm_conf.values("PrologFlags")[-1:], "Alloc"]  # when a job gets the node, not when it first uses it
    # Slurm holds a job whose prolog failed, unless nohold_on_prolog_fail lets it take another node.
    scheduling = [*slurm_conf.values("SchedulerParameters")[-1:], "nohold_on_prolog_fail"]
    return (
        "# Written by podwright's bootstrap.\n"
        f"Prolog={PROGRAMS['prolog'].parent}/*\nEpilog={PROGRAMS['epilog'].parent}/*\n"
        f"PrologFlags={','.join(flags)}\nSchedulerParameters={','.join(scheduling)}\n"
    )
