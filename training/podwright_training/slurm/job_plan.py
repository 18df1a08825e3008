"""Combine the flags of ``podwright-train launch`` and the facts of the nodes into a job."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from podwright_training.errors import LaunchError
from podwright_training.hardware import rank_peak_flops
from podwright_training.jobs.spec import JobSpec
from podwright_training.jobs.spec import load as load_job
from podwright_training.run_folder import RunFolder
from podwright_training.run_variables import problems_of_files
from podwright_training.slurm.batch_script import Elastic, Job
from podwright_training.slurm.launch_checks import (
    NodeRange,
    check_policy,
    problems_of_launch,
    trainer_arguments,
    trainer_config,
)
from podwright_training.slurm.node_facts import NodeFacts


def plan(args: argparse.Namespace, nodes: NodeFacts) -> Job:
    """Combine flags and facts into a job; flags override facts.

    Raises:
        LaunchError: With every problem.
    """
    spec = load_job(args.job) if args.job else None
    if spec:
        _prepare(args, spec)
    nproc_per_node = nodes.ranks_per_node if args.nproc_per_node is None else args.nproc_per_node
    run_dir = run_dir_of(args, nodes, spec.name if spec else "")
    if problems := list(problems_of_launch(args, nodes, nproc_per_node, run_dir)):
        raise LaunchError("\n".join(problems))
    secrets = spec.secrets if spec else trainer_config(args).secrets
    if problems := list(problems_of_files(secrets)):
        raise LaunchError("\n".join(problems))
    elastic = None
    if args.nodes.min_nodes < args.nodes.max_nodes or args.spares:
        elastic = Elastic(min_nodes=args.nodes.min_nodes, spares=args.spares or 0)
        check_policy(args, nproc_per_node)
    accelerator = nodes.accelerator if args.accelerator is None else args.accelerator.removeprefix("cpu")
    partition = args.partition or nodes.partition
    return Job(
        run=RunFolder(run_dir),
        nodes=args.nodes.max_nodes,
        nproc_per_node=nproc_per_node,
        # The link `current-…` would lead elsewhere later.
        environment=args.environment or Path(nodes.environment or sys.prefix).resolve(),
        partition=partition,
        accelerator=accelerator,
        efa=bool(nodes.efa_interfaces) if args.efa is None else args.efa,
        auto_resume=nodes.hyperpod and elastic is None if args.auto_resume is None else args.auto_resume,
        gres=_gres(partition, nproc_per_node) if accelerator == "gpu" else None,
        time_limit=args.time_limit,
        trainer_arguments=trainer_arguments(args),
        elastic=elastic,
        spec=spec and _with_peak(spec, nodes.accelerator_name if accelerator else ""),
    )


def _with_peak(spec: JobSpec, accelerator_name: str) -> JobSpec:
    """Return the job with the nodes' accelerator, for its MFU, if it names none and theirs has a known peak."""
    if spec.model.accelerator or not rank_peak_flops(accelerator_name):
        return spec
    return replace(spec, model=replace(spec.model, accelerator=accelerator_name))


def _prepare(args: argparse.Namespace, spec: JobSpec) -> None:
    """Set nodes and ranks from job.yaml; refuse options that only our trainer has."""
    trainer_flags = ("--preset", args.preset), ("flags after --", args.trainer_arguments), ("--spares", args.spares)
    problems = [f"{name}: only podwright-train's own run has it, not --job" for name, value in trainer_flags if value]
    args.nodes = args.nodes or NodeRange(spec.nodes, spec.nodes)
    if args.nodes.min_nodes != args.nodes.max_nodes:
        problems.append(
            f"--nodes: got {args.nodes.min_nodes}-{args.nodes.max_nodes}, need one number: another trainer is not "
            "elastic"
        )
    if problems:
        raise LaunchError("\n".join(problems))
    if args.nproc_per_node is None:
        args.nproc_per_node = spec.ranks_per_node or None


def run_dir_of(args: argparse.Namespace, nodes: NodeFacts, job_name: str = "") -> Path:
    """Return the run's folder: the flag's value, or a folder named after the preset or the job."""
    name = args.preset or job_name or (args.job and args.job.stem)
    if args.run_dir is None and name is None:
        raise LaunchError("--run-dir or --preset is required: the run's folder, or its model")
    run_dir: Path = args.run_dir or Path(nodes.shared_root) / "runs" / name
    return Path(os.path.normpath(run_dir.absolute()))  # `..` could lead out of the shared folder.


def _gres(partition: str | None, gpus: int) -> str | None:
    """Return the GRES request for GPUs if Slurm tracks them; HyperPod's does since 2025."""
    command = ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
    try:
        counted = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None  # no Slurm to ask: --print elsewhere; sbatch itself will complain
    return f"gpu:{gpus}" if "gpu" in counted else None
