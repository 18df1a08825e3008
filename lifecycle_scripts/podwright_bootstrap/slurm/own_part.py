"""Our part of Slurm's configuration: a separate file that slurm.conf includes beside the service's lines.

What the service gave to a key of ours is repeated here, and its own line is kept as a comment.
https://slurm.schedmd.com/slurm.conf.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterable, Iterator, List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ProvisioningParameters
from podwright_bootstrap.features import SlurmPolicy
from podwright_bootstrap.host import files, log
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.slurm import partitions, slurm_conf, take_over, topology
from podwright_bootstrap.slurm.slurm_conf import ACCOUNTING_CONF, SLURM_CONF

OWN_PART = SLURM_CONF.with_name("podwright-slurm.conf")
PROGRAMS = {name: contract.STATE_DIRECTORY / f"{name}.d" / "50-podwright.sh" for name in ("prolog", "epilog")}
# What slurm.conf names. slurmctld sends a program without a folder in its name to nodes, with the configuration, so no
# node lacks it: one that booted before nodes.prolog was set, one that has not booted, one that leaves the step out.
# https://slurm.schedmd.com/configless_slurm.html#LIMITATIONS
SENT_PROGRAMS = {name: SLURM_CONF.with_name(f"podwright-{name}.sh") for name in PROGRAMS}
# Before this release slurm.conf names a pattern. Slurm drains a node where it matches no program.
SENDS_SINCE = (24, 11)
CONTAIN = "Contain"  # a step on each node of a job, which sessions join
# The prolog runs on all nodes when a job gets them, so that a node that fails it is replaced before the job starts. By
# default it runs before a job's first step on a node, which suffices for the folders of containers. HyperPod's
# auto-resume refused Alloc: https://github.com/awslabs/awsome-distributed-ai/pull/584
ALLOC = "Alloc"
TAKE_ANOTHER_NODE = "nohold_on_prolog_fail"  # Slurm holds a job whose prolog failed, unless this is given


def write(parameters: ProvisioningParameters) -> Iterator[str]:
    """Write our part and let slurm.conf include it and the accounting's, now and after the service rewrote it.

    Raises:
        BootstrapError: slurm.conf has another program's prolog or epilog.
    """
    yield from write_file(parameters)
    yield from _limit_partitions(parameters)
    text, missing = SLURM_CONF.read_text(), not_included(parameters)
    new_text = slurm_conf.keeping(text, [*settings_of(parameters), *topology.keys_to_leave_out()])
    if missing:  # A configless controller sends only files that are included by a relative name.
        new_text = new_text.rstrip() + "\n" + "".join(f"include {file.name}\n" for file in missing)
    if slurm_conf.write(SLURM_CONF, new_text):
        names = ", ".join(file.name for file in missing)
        yield f"included {names} in {SLURM_CONF}" if missing else f"made comments of our keys in {SLURM_CONF}"


def write_file(parameters: ProvisioningParameters) -> Iterator[str]:
    """Write our part alone; another controller may include it in the slurm.conf that both have."""
    if parameters.nodes.has_prolog:
        yield from _write_sent_programs()
    settings = settings_of(parameters)
    if settings or OWN_PART.exists():
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        if slurm_conf.write(OWN_PART, f"# Written by podwright: what it says is lost at the next boot.\n{lines}"):
            yield f"wrote {OWN_PART}"


def not_included(parameters: ProvisioningParameters) -> List[Path]:
    """Return the files that slurm.conf lacks; ours is the last, which counts."""
    text = SLURM_CONF.read_text()
    return [file for file in _included(parameters) if not slurm_conf.includes(file, text)]


def _included(parameters: ProvisioningParameters) -> List[Path]:
    return [*([ACCOUNTING_CONF] if parameters.accounting else []), *([OWN_PART] if OWN_PART.exists() else [])]


def settings_of(parameters: ProvisioningParameters) -> Dict[str, str]:
    """Return the keys of our part and their values."""
    nodes = parameters.nodes
    flags, scheduler = [CONTAIN] if nodes.pam_slurm_adopt else [], []
    settings = {**take_over.settings(parameters), **topology.settings()}
    if nodes.has_prolog:
        _refuse_programs()
        settings.update(_named_programs())
        if nodes.prolog is not None:
            flags.append(ALLOC)
        scheduler.append(TAKE_ANOTHER_NODE)
    if nodes.slurm:
        settings.update(_policy(nodes.slurm))
    for key, added in (("PrologFlags", flags), ("SchedulerParameters", scheduler)):
        if added:
            current = settings.get(key) or slurm_conf.value(key, "")
            settings[key] = ",".join(_united(current.split(","), added))
    return settings


def _named_programs() -> Dict[str, str]:
    if slurm_conf.slurm_release() < SENDS_SINCE:
        return {name.capitalize(): f"{program.parent}/*" for name, program in PROGRAMS.items()}
    return {name.capitalize(): program.name for name, program in SENT_PROGRAMS.items()}


def _write_sent_programs() -> Iterator[str]:
    """Write the programs beside slurm.conf; nodes run all programs of their folder until one fails, as by a pattern."""
    for name, program in SENT_PROGRAMS.items():
        text = (
            f"#!/bin/sh\n# Written by podwright's bootstrap; slurmctld sends it to nodes.\n"
            f"for program in {PROGRAMS[name].parent}/*; do\n"
            f'  if [ -f "$program" ] && [ -x "$program" ]; then "$program" "$@" || exit; fi\n'
            f"done\n"
        )
        if files.write_file(program, text, mode=0o755):
            yield f"wrote {program}"


def _policy(policy: SlurmPolicy) -> Dict[str, str]:
    """Return the keys with which accounts and qualities of service count: limits, fair share, preemption."""
    settings: Dict[str, str] = {}
    if policy.accounts or policy.qos:
        current = slurm_conf.value("AccountingStorageEnforce", "").split(",")
        settings.update(
            AccountingStorageEnforce=",".join(_united(current, ["associations", "limits", "qos"])),
            PriorityType="priority/multifactor",
            PriorityWeightFairshare="10000",
            PriorityWeightQOS="10000",
        )
    if any(qos.preempts for qos in policy.qos):
        settings.update(PreemptType="preempt/qos", PreemptMode="REQUEUE")
    return {**settings, **policy.settings}


def _limit_partitions(parameters: ProvisioningParameters) -> Iterator[str]:
    limits = parameters.nodes.slurm.partitions if parameters.nodes.slurm else ()
    text = SLURM_CONF.read_text()
    for name in partitions.missing(text, limits):
        log.say(f"warning: {SLURM_CONF} has no partition {name} to limit")
    limited = partitions.limited(text, limits)
    if limited != text and slurm_conf.write(SLURM_CONF, limited):
        yield f"set the limits of partitions in {SLURM_CONF}"


def _united(current: Iterable[str], added: Iterable[str]) -> List[str]:
    """Return both lists as one, each word once, whatever its case."""
    words: Dict[str, str] = {}
    for word in [*current, *added]:
        words.setdefault(word.lower(), word)
    return [word for word in words.values() if word]


def _refuse_programs() -> None:
    for name, program in PROGRAMS.items():
        values = slurm_conf.values(name)[-1:]
        if values:
            raise BootstrapError(
                f"{SLURM_CONF} has {name.capitalize()}={values[-1]} already",
                hint=f"put that program into {program.parent} of the nodes and take the line away, "
                "or leave nodes.prolog and nodes.containers.enroot out of cluster.yaml",
            )
