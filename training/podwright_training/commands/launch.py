"""``podwright-train launch``: make the run folder, render the batch script for its nodes, submit it to Slurm.

Facts of the nodes come from ``/opt/podwright/node.json``; on a login or controller node, those of the compute nodes
from ``provisioning_parameters.json``. On a Slurm cluster without these files, use the flags.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.config.sources import preset_names
from podwright_training.errors import LaunchError
from podwright_training.nxdt import nxdt_launch as nxdt
from podwright_training.slurm.batch_script import render
from podwright_training.slurm.job_plan import plan, run_dir_of
from podwright_training.slurm.launch_checks import NodeRange, problems_of_nxdt, problems_of_run_dir
from podwright_training.slurm.launched_run import LaunchedRun, SubmittedJobs
from podwright_training.slurm.node_facts import (
    API_PARAMETERS,
    NODE_JSON,
    PROVISIONING_PARAMETERS,
    NodeFacts,
    read_nodes,
)
from podwright_training.slurm.submission import submit

ACCELERATORS = ("gpu", "neuron", "cpu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train launch``."""
    parser.add_argument(
        "--run-dir", type=Path, help="folder of the run, on the shared file system. Default: runs/<preset> there"
    )
    parser.add_argument(
        "--preset", choices=preset_names(), metavar="NAME", help=f"the model: one of {', '.join(preset_names())}"
    )
    parser.add_argument("--job", type=Path, metavar="FILE", help="start another trainer, described by this job.yaml")
    parser.add_argument(
        "--nodes",
        type=NodeRange.parse,
        metavar="N",
        help="number of nodes, or a range such as 2-4 for an elastic run, which continues with fewer when nodes are "
        "lost and grows again. Default: --job's number, 1 with --backend nxdt, otherwise required",
    )
    parser.add_argument(
        "--spares", type=int, metavar="N", help="spare nodes that wait to replace lost ones. Default: 0"
    )
    parser.add_argument(
        "--nproc-per-node", type=int, help="ranks per node. Default: the node's GPUs, or cores of its Neuron devices"
    )
    parser.add_argument("--partition", help="Slurm partition. Default: the nodes' own, or Slurm's default")
    parser.add_argument("--accelerator", choices=ACCELERATORS, help="kind of accelerator. Default: node.json, or cpu")
    parser.add_argument(
        "--efa", action=argparse.BooleanOptionalAction, help="nodes have Elastic Fabric Adapters. Default: node.json"
    )
    parser.add_argument(
        "--auto-resume",
        action=argparse.BooleanOptionalAction,
        help="use HyperPod's srun --auto-resume. Default: on HyperPod",
    )
    parser.add_argument("--environment", type=Path, help="virtual environment. Default: node.json, or this one")
    parser.add_argument(
        "--time-limit", help="Slurm's --time; the run saves and requeues before it ends. Default: no limit"
    )
    parser.add_argument(
        "--backend",
        choices=("native", "nxdt"),
        default="native",
        help="native: podwright-train; nxdt: AWS's NxD Training, the only one for trn1. Default: native",
    )
    parser.add_argument("--instance", metavar="TYPE", help="instance type of Trainium nodes. Default: node.json")
    nxdt.add_arguments(parser)
    parser.add_argument("--print", action="store_true", dest="print_only", help="print the script, write no files")
    add_json(parser)
    parser.add_argument(
        "trainer_arguments",
        nargs="*",
        metavar="flag",
        help="after `--`: flags of `podwright-train train`, passed unchanged",
    )


def run(args: argparse.Namespace) -> int:
    """Render the script and submit or print it; return the exit status."""
    parameters = API_PARAMETERS if API_PARAMETERS.exists() else PROVISIONING_PARAMETERS
    nodes = read_nodes(args.partition, NODE_JSON, parameters)
    if args.backend == "nxdt":
        return _run_nxdt(args, nodes)
    job = plan(args, nodes)
    if args.print_only:
        print(render(job), end="")
        return 0
    number = submit(job)
    commands = {
        "state": f"squeue --jobs={number}",
        "output": f"tail -F {job.output}",
        "stop": f"scancel {number}",
        "report": f"podwright-train report --run-dir={shlex.quote(str(job.run.root))}",
    }
    lines = [f"submitted job {number}, run folder {job.run.root}"]
    lines += [f"  {name:8} {command}" for name, command in commands.items()]
    submitted = SubmittedJobs(job=number, jobs={"train": number}, run_dir=job.run.root, log=job.output)
    print_result(args, "\n".join(lines), LaunchedRun(submitted, commands))
    return 0


def _run_nxdt(args: argparse.Namespace, nodes: NodeFacts) -> int:
    """Launch NxD Training on Trainium nodes."""
    if args.instance is None and nodes.accelerator_name == "Trainium":
        args.instance = "ml.trn1.32xlarge"
    run_dir = run_dir_of(args, nodes)
    if problems := [*problems_of_run_dir(args, nodes, run_dir), *problems_of_nxdt(args)]:
        raise LaunchError("\n".join(problems))
    return nxdt.run(
        args,
        run_dir=run_dir,
        partition=args.partition or nodes.partition,
        auto_resume=nodes.hyperpod if args.auto_resume is None else args.auto_resume,
    )
