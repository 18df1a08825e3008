"""Refuse a job that its nodes would refuse before anything is sent, and compare its time with training plans.

Only this machine has planner and cluster.yaml.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.aws_session import Session
from podwright.errors import ArgumentError, OperationError
from podwright.operations.account.hyperpod import InstanceGroup
from podwright_bootstrap.contract import COMPUTE
from podwright_common.command_line import Parser

if TYPE_CHECKING:
    from podwright.planning.run_hours import Run
    from podwright_training.config.train_config import TrainConfig
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
    from podwright_training.nxdt.nxdt_launch import planned
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
    from podwright.check.checked_settings import check
    from podwright.check.rules.run import job_fits

    settings, flags = check(settings_file).settings, _launch(options)
    if settings is None:
        return
    nodes, ranks = flags.nodes.max_nodes if flags.nodes else job.nodes, flags.nproc_per_node or job.ranks_per_node
    sized_job = replace(job, nodes=nodes, ranks_per_node=ranks)
    if findings := list(job_fits(settings, sized_job, partition=flags.partition)):
        hints = dict.fromkeys(finding.hint for finding in findings)
        raise ArgumentError(f"{settings_file}: " + "; ".join(finding.message for finding in findings), "; ".join(hints))


def plan_shortfalls(
    options: argparse.Namespace,
    training_run: Callable[[], Run | None],
    groups: Sequence[InstanceGroup],
    session: Session,
) -> Iterator[str]:
    """Yield for each training plan of the job's nodes that the run takes longer than what is left of it.

    Args:
        options: of the command; of a range of nodes the smallest number counts.
        training_run: returns what is submitted, or None if nothing predicts its time.
        groups: of the cluster.
        session: for ``sagemaker:DescribeTrainingPlan``; without that right a line says so.
    """
    planned_groups = [
        group
        for group in groups
        if group.role == COMPUTE and group.training_plan_arn and options.partition in {None, group.partition}
    ]
    run = training_run() if planned_groups else None
    if run is None:
        return
    from podwright.check.plan_hours import HINT, shortfall
    from podwright.planning.run_hours import run_hours

    for group in planned_groups:
        nodes = int(options.nodes.partition("-")[0]) if options.nodes else getattr(run, "nodes", 1)
        hours = run_hours(run, group.instance_type, nodes, session.region).hours
        if hours is None:
            continue
        try:
            plan = session.call("sagemaker", "describe_training_plan", TrainingPlanName=group.training_plan_arn)
        except OperationError as error:
            yield f"the run's time was not compared with the plan of {group.name}: {error}"
            continue
        if text := shortfall(plan, hours):
            yield f"{text}. {HINT}"


def run_with_arguments(options: argparse.Namespace) -> TrainConfig | None:
    """Return the options of a run.yaml with the command's ``--arguments``; None if the nodes will refuse them."""
    from podwright_training.config import sources
    from podwright_training.errors import ConfigError
    from podwright_training.spelling import as_shown

    parser = Parser(prog="podwright-train train")
    sources.add_arguments(parser)
    words = [f"--config={options.file}", *options.arguments]
    try:
        return sources.load(parser.parse_known_args(as_shown(words, parser))[0])
    except (ConfigError, SystemExit):
        return None


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
