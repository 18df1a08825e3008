"""Turn ``podwright-train launch --backend nxdt`` into a plan, and submit or print it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from podwright_common.command_line import Parser
from podwright_training.command_result import print_result
from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig, option_names
from podwright_training.errors import ConfigError
from podwright_training.nxdt import chain, memory
from podwright_training.nxdt.plan import INDEX, MEMBERS, Plan, layout_of, problems, shared_folder
from podwright_training.run_folder import NXDT_STEPS, RunFolder
from podwright_training.slurm.launched_run import LaunchedNxdtRun, SubmittedJobs
from podwright_training.spelling import parse_known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only NxD Training has."""
    group = parser.add_argument_group("with --backend nxdt")
    group.add_argument(
        "--kv-replicator",
        type=int,
        metavar="N",
        help="cores that hold the same key-value heads. Default: the number that tensor_parallel needs",
    )
    group.add_argument("--neuron-index", default=INDEX, help=f"address of Neuron's packages. Default: {INDEX}")
    group.add_argument(
        "--compile-cache",
        default="",
        metavar="PLACE",
        help="folder or S3 URI of compiled graphs. Default: .nxdt-UID/neuron_cache beside the run's folder",
    )


def run(args: argparse.Namespace, *, run_dir: Path, partition: str | None, auto_resume: bool) -> int:
    """Check the plan, then print its scripts or submit them; return the exit status.

    Raises:
        ConfigError: With every problem.
    """
    plan = planned(args, run_dir=run_dir, partition=partition, auto_resume=auto_resume)
    messages = list(problems(plan))
    if not (plan.podwright / "bin" / "python").exists():
        need = "the virtual environment with podwright-train, which all nodes see"
        messages.append(f"--environment: got {plan.podwright}, which has no bin/python: name {need}")
    needed = None if messages else memory.predict(plan)
    if needed and not needed.fits:
        messages.append(memory.problem(plan, needed))
    if messages:
        raise ConfigError(messages)
    if args.print_only:
        for name, content in chain.files(plan).items():
            print(f"# {plan.folder / name}\n{content}")
        return 0
    _submit(args, plan, needed)
    return 0


def planned(args: argparse.Namespace, *, run_dir: Path, partition: str | None, auto_resume: bool = False) -> Plan:
    """Return the plan that the flags ask for, unchecked.

    Raises:
        ConfigError: An option is wrong, or NxD Training does not run on the instance type.
    """
    config, flag_names = _config(args)
    instance_type = args.instance
    if instance_type not in MEMBERS:
        need = f"--instance: got {instance_type or 'nothing'}, need one of {', '.join(MEMBERS)}"
        raise ConfigError([need])
    nodes = args.nodes.max_nodes if args.nodes else 1
    tensor = config.tensor_parallel if "tensor_parallel" in flag_names or config.tensor_parallel > 1 else None
    return Plan(
        run=RunFolder(run_dir),
        config=config,
        instance_type=instance_type,
        nodes=nodes,
        layout=layout_of(config, instance_type, nodes, key_value_copies=args.kv_replicator, tensor=tensor),
        shared=shared_folder(run_dir),
        index=args.neuron_index,
        cache_root=args.compile_cache,
        partition=partition,
        auto_resume=auto_resume,
        podwright=args.environment or Path(sys.prefix),
    )


def _submit(args: argparse.Namespace, plan: Plan, needed: memory.Prediction | None) -> None:
    jobs, log = chain.submit(plan), plan.run.step_log(NXDT_STEPS[-1])
    words = "memory: not checked here, where podwright's planner is not installed; `podwright submit` checks it"
    if needed:
        words = f"memory: {needed.peak_gb:.1f} of {needed.has_gb:.1f} GB of a device, as podwright plan predicts"
    commands = {
        "state": f"squeue --jobs={','.join(map(str, jobs.values()))}",
        "output": f"tail -F {shlex.quote(str(log))}",
        "stop": f"scancel {' '.join(map(str, jobs.values()))}",
    }
    lines = [f"submitted {', '.join(f'{step} as job {job}' for step, job in jobs.items())}", words]
    lines += [f"  {name:8} {command}" for name, command in commands.items()]
    submitted = SubmittedJobs(job=jobs[NXDT_STEPS[-1]], jobs=jobs, run_dir=plan.run.root, log=str(log))
    print_result(args, "\n".join(lines), LaunchedNxdtRun(submitted, plan.cache, commands))


def _config(args: argparse.Namespace) -> tuple[TrainConfig, set[str]]:
    """Return the options behind ``--``, and those given as flags."""
    parser = Parser(prog="podwright-train launch")
    sources.add_arguments(parser)
    words = [*(["--preset", args.preset] if args.preset else []), *args.trainer_arguments]
    flags, unknown = parse_known(parser, words)
    flags.unknown_words = unknown
    return sources.load(flags), {name for name in option_names() if hasattr(flags, name)}
