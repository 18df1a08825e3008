"""Refuse a job that its nodes would refuse before anything is sent: only this machine has planner and cluster.yaml."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.operations.account.cluster import InstanceGroup
from podwright.operations.errors import ArgumentError
from podwright_bootstrap.contract import COMPUTE
from podwright_common.command_line import Parser

if TYPE_CHECKING:
    from podwright_training.jobs.spec import JobSpec


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
    from podwright_training.errors import ConfigError
    from podwright_training.nxdt.launch import planned
    from podwright_training.nxdt.plan import MEMBERS
    from podwright_training.slurm.launch_checks import problems_of_nxdt

    partitions = {flags.partition} if flags.partition else {group.partition for group in groups}
    compute_types = [group.instance_type for group in groups if group.role == COMPUTE and group.partition in partitions]
    types = [instance_type for instance_type in compute_types if instance_type in MEMBERS]
    instance_flags = [f"--instance={types[0]}"] if types and not flags.instance else []
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
    return instance_flags


def refuse_job(options: argparse.Namespace, job: JobSpec, settings_file: Path | None) -> None:
    """Check a job.yaml against the cluster's settings file, if it is here and its keys and types are right.

    Raises:
        ArgumentError: the cluster lacks what the job asks for; the message has every reason.
    """
    if settings_file is None:
        return
    from podwright.check.report import check
    from podwright.check.rules.run import job_fits

    settings, flags = check(settings_file).settings, _launch(options)
    if settings is None:
        return
    nodes, ranks = flags.nodes.max_nodes if flags.nodes else job.nodes, flags.nproc_per_node or job.ranks_per_node
    sized_job = replace(job, nodes=nodes, ranks_per_node=ranks)
    if findings := list(job_fits(settings, sized_job, partition=flags.partition)):
        hints = dict.fromkeys(finding.hint for finding in findings)
        raise ArgumentError(f"{settings_file}: " + "; ".join(finding.message for finding in findings), "; ".join(hints))


def _launch(options: argparse.Namespace, run: Path | None = None) -> argparse.Namespace:
    """Return the flags for podwright-train launch, without those that this version of it lacks."""
    from podwright_training.commands.launch import add_arguments
    from podwright_training.spelling import as_shown

    parser = Parser(prog="podwright-train launch")
    add_arguments(parser)
    values = {"nodes": options.nodes, "partition": options.partition, "time-limit": options.time_limit}
    words = [*(f"--{name}={value}" for name, value in values.items() if value), *options.launch_arguments]
    trainer = ["--", f"--config={run}", *options.arguments] if run else []
    return parser.parse_known_args(as_shown([*words, *trainer], parser))[0]
