"""Refuse a job that its nodes would refuse, before anything is sent: the planner and cluster.yaml are here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from podwright.operations.account.cluster import InstanceGroup
from podwright.operations.errors import ArgumentError
from podwright_bootstrap.contract import COMPUTE


def refuse_run(options: argparse.Namespace, groups: Sequence[InstanceGroup]) -> list[str]:
    """Check a run.yaml that is for NxD Training; return the flags of launch that the cluster decides.

    Those for podwright-train itself are checked by `check --run`.

    Raises:
        ArgumentError: NxD Training, the nodes or their memory refuse it; the message has every reason.
    """
    flags = _launch(options, run=options.file)
    if flags.backend != "nxdt":
        return []
    from podwright.planning import nxdt as planner  # a native run needs no planner
    from podwright_training.commands.launch import problems_of_nxdt
    from podwright_training.errors import ConfigError
    from podwright_training.nxdt.launch import planned
    from podwright_training.nxdt.plan import MEMBERS

    partitions = {flags.partition} if flags.partition else {group.partition for group in groups}
    there = [group for group in groups if group.role == COMPUTE and group.partition in partitions]
    types = [group.instance_type for group in there if group.instance_type in MEMBERS]
    known = [f"--instance={types[0]}"] if types and not flags.instance else []
    flags.instance = flags.instance or next(iter(types), None)
    problems = list(problems_of_nxdt(flags))
    if not problems:
        try:
            plan = planned(flags, run_dir=planner.SHARED / "run", partition=flags.partition)
            problems = planner.problems(plan)
        except ConfigError as error:
            problems = error.problems
    if problems:
        raise ArgumentError("; ".join(problems), "nothing was sent")
    return known


def refuse_job(options: argparse.Namespace, settings_file: Path | None) -> None:
    """Check a job.yaml against the cluster's settings file, if it is here and its keys and types are right.

    Raises:
        ArgumentError: the cluster lacks what the job asks for; the message has every reason.
    """
    if settings_file is None:
        return
    from podwright.check.report import check
    from podwright.check.rules.run import job_fits
    from podwright_training.jobs.spec import load

    settings, flags, job = check(settings_file).settings, _launch(options), load(options.file)
    if settings is None:
        return
    nodes, ranks = flags.nodes.most if flags.nodes else job.nodes, flags.nproc_per_node or job.ranks_per_node
    asked = replace(job, nodes=nodes, ranks_per_node=ranks)
    if found := list(job_fits(settings, asked, partition=flags.partition)):
        hints = dict.fromkeys(finding.hint for finding in found)
        raise ArgumentError(f"{settings_file}: " + "; ".join(finding.message for finding in found), "; ".join(hints))


def _launch(options: argparse.Namespace, run: Path | None = None) -> argparse.Namespace:
    """Return the flags that podwright-train launch will get, as far as this version knows them."""
    from podwright_training.commands.launch import add_arguments
    from podwright_training.spelling import Parser, as_shown

    parser = Parser(prog="podwright-train launch")
    add_arguments(parser)
    given = {"nodes": options.nodes, "partition": options.partition, "time-limit": options.time_limit}
    words = [*(f"--{name}={value}" for name, value in given.items() if value), *options.launch_arguments]
    trainer = ["--", f"--config={run}", *options.arguments] if run else []
    return parser.parse_known_args(as_shown([*words, *trainer], parser))[0]
