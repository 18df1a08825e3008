"""``podwright-train launch``: make the run folder, render the batch script for its nodes, submit it to Slurm.

Facts of the nodes come from ``/opt/podwright/node.json``; on a login or controller node, those of the compute nodes
from ``provisioning_parameters.json``. On a Slurm cluster without these files, use the flags.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from podwright_training import neuron, shell_templates
from podwright_training.answer import add_json, answer
from podwright_training.config import sources
from podwright_training.config.sources import preset_names
from podwright_training.elastic.membership import DIVERGED, FAILED, FINISHED, LEFT, UNABLE, USER_ERROR
from podwright_training.elastic.offenders import MOST_FAILURES, WITHIN_S
from podwright_training.elastic.policy import Policy
from podwright_training.errors import ConfigError, UserError
from podwright_training.hardware import rank_peak_flops
from podwright_training.jobs.script import start_script
from podwright_training.jobs.spec import JobSpec, fill
from podwright_training.jobs.spec import load as load_job
from podwright_training.nxdt import launch as nxdt
from podwright_training.private_folder import make_closed, may_be_exchanged, other_owner
from podwright_training.run_claim import Kind, claim_of_run
from podwright_training.run_folder import RunFolder, writable, write_atomically
from podwright_training.run_secret import run_secret
from podwright_training.spelling import Parser, as_shown, flag

# Both are written by the bootstrap, whose contract module owns paths and keys; a test compares them.
NODE_JSON = Path("/opt/podwright/node.json")
PROVISIONING_PARAMETERS = Path("/opt/ml/config/provisioning_parameters.json")
API_PARAMETERS = PROVISIONING_PARAMETERS.with_name("podwright_parameters.json")  # where HyperPod sets Slurm up
HYPERPOD_MARK = Path("/opt/sagemaker_cluster")  # exists on every HyperPod node, with our bootstrap or without

DAMAGED = (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)  # what reading a torn file raises

ACCELERATORS = ("gpu", "neuron", "cpu")
SAVE_S = 600  # limit of the last checkpoint
SIGNAL_LEAD_S = SAVE_S + 60  # Slurm signals so long before the time limit
FOREIGN = ("job", "nproc_per_node", "time_limit", "accelerator", "efa")  # options that --backend nxdt lacks
TEMPLATE, ELASTIC_TEMPLATE, JOB_TEMPLATE = "train.sbatch", "elastic.sbatch", "job.sbatch"


class LaunchError(UserError):
    """Submitting the job failed; the message lists every problem."""


class Span(NamedTuple):
    """The fewest and the most nodes."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Span:
        """Read ``4`` or ``2-4``."""
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"got {text}, need a number of nodes such as 4, or a range such as 2-4")
        return cls(int(match[1]), int(match[2] or match[1]))


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The fewest nodes of an elastic job, and its spare nodes, which replace lost ones."""

    min_nodes: int
    spares: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Inputs of the batch script."""

    run: RunFolder
    nodes: int
    nproc_per_node: int  # ranks: one per accelerator
    environment: Path  # virtual environment, visible on all nodes
    partition: str | None = None
    accelerator: str = ""  # "" | "gpu" | "neuron"
    efa: bool = False
    auto_resume: bool = False  # HyperPod's srun option; stock Slurm refuses it
    gres: str | None = None  # where Slurm counts GPUs, a step sees only those the job asked for
    time_limit: str | None = None
    trainer_arguments: tuple[str, ...] = ()
    elastic: Elastic | None = None
    spec: JobSpec | None = None  # of another program than our trainer

    @property
    def tasks_per_node(self) -> int:
        """Return the processes that srun starts on each node: launchers, or the ranks themselves."""
        return self.nproc_per_node if self.spec and self.spec.launcher == "srun" else 1

    @property
    def program(self) -> Path:
        """Return the command that the batch script starts on each node."""
        return self.environment / "bin" / ("podwright-train" if self.elastic or self.spec else "torchrun")

    @property
    def output(self) -> str:
        """Return the files of the job's output, a shell's pattern if there are several."""
        return str(self.run.host_log("*")) if self.elastic else shlex.quote(str(self.run.log))


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Known facts of the compute nodes."""

    partition: str | None = None
    accelerator: str = ""
    accelerators_per_node: int = 0
    accelerator_name: str = ""  # "A10G", "Trainium2", …
    efa_interfaces: int = 0
    environment: str | None = None
    shared_root: str = ""
    hyperpod: bool = False

    @property
    def ranks_per_node(self) -> int:
        """Return the ranks of a node: one for each GPU, or for each core that programs see of a Neuron device."""
        cores = neuron.ranks_per_device(self.accelerator_name) if self.accelerator == "neuron" else 1
        return self.accelerators_per_node * cores


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
        type=Span.parse,
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
    document = {"job": number, "jobs": {"train": number}, "run_dir": job.run.root, "log": job.output}
    answer(args, "\n".join(lines), {**document, "commands": commands})
    return 0


def _run_nxdt(args: argparse.Namespace, nodes: NodeFacts) -> int:
    """Launch NxD Training on Trainium nodes."""
    if args.instance is None and nodes.accelerator_name == "Trainium":
        args.instance = "ml.trn1.32xlarge"
    run_dir = _run_dir(args, nodes)
    if problems := [*_problems_of_run_dir(args, nodes, run_dir), *problems_of_nxdt(args)]:
        raise LaunchError("\n".join(problems))
    return nxdt.run(
        args,
        run_dir=run_dir,
        partition=args.partition or nodes.partition,
        auto_resume=nodes.hyperpod if args.auto_resume is None else args.auto_resume,
    )


def problems_of_nxdt(args: argparse.Namespace) -> Iterator[str]:
    """Yield flags that conflict with ``--backend nxdt``."""
    given = [name for name in FOREIGN if getattr(args, name) is not None]
    yield from (f"{flag(name)}: leave it out, --backend nxdt has none" for name in given)
    yield from _problems_of_words(args)
    if args.nodes:
        yield from _problems_of_nodes(args)
    if args.spares or (args.nodes and args.nodes.least < args.nodes.most):
        yield "--nodes: NxD Training is not elastic, give one number and no --spares"


def plan(args: argparse.Namespace, nodes: NodeFacts) -> Job:
    """Combine flags and facts into a job; flags override facts.

    Raises:
        LaunchError: With every problem.
    """
    spec = load_job(args.job) if args.job else None
    if spec:
        _prepare(args, spec)
    nproc_per_node = nodes.ranks_per_node if args.nproc_per_node is None else args.nproc_per_node
    run_dir = _run_dir(args, nodes, spec.name if spec else "")
    if problems := list(_problems(args, nodes, nproc_per_node, run_dir)):
        raise LaunchError("\n".join(problems))
    elastic = None
    if args.nodes.least < args.nodes.most or args.spares:
        elastic = Elastic(min_nodes=args.nodes.least, spares=args.spares or 0)
        _check_policy(args, nproc_per_node)
    accelerator = nodes.accelerator if args.accelerator is None else args.accelerator.removeprefix("cpu")
    partition = args.partition or nodes.partition
    return Job(
        run=RunFolder(run_dir),
        nodes=args.nodes.most,
        nproc_per_node=nproc_per_node,
        environment=args.environment or Path(nodes.environment or sys.prefix).resolve(),  # not the link: it moves
        partition=partition,
        accelerator=accelerator,
        efa=bool(nodes.efa_interfaces) if args.efa is None else args.efa,
        auto_resume=nodes.hyperpod and elastic is None if args.auto_resume is None else args.auto_resume,
        gres=_gres(partition, nproc_per_node) if accelerator == "gpu" else None,
        time_limit=args.time_limit,
        trainer_arguments=_trainer_arguments(args),
        elastic=elastic,
        spec=spec and _with_peak(spec, nodes.accelerator_name if accelerator else ""),
    )


def _with_peak(spec: JobSpec, accelerator_name: str) -> JobSpec:
    """Return the job with the nodes' accelerator, for its MFU, if it names none and theirs has a known peak."""
    if spec.model.accelerator or not rank_peak_flops(accelerator_name):
        return spec
    return replace(spec, model=replace(spec.model, accelerator=accelerator_name))


def _prepare(args: argparse.Namespace, spec: JobSpec) -> None:
    """Fill in nodes and ranks from the job; refuse options that only our trainer has."""
    ours = ("--preset", args.preset), ("flags after --", args.trainer_arguments), ("--spares", args.spares)
    problems = [f"{name}: only podwright-train's own run has it, not --job" for name, value in ours if value]
    args.nodes = args.nodes or Span(spec.nodes, spec.nodes)
    if args.nodes.least != args.nodes.most:
        problems.append(
            f"--nodes: got {args.nodes.least}-{args.nodes.most}, need one number: another trainer is not elastic"
        )
    if problems:
        raise LaunchError("\n".join(problems))
    if args.nproc_per_node is None:
        args.nproc_per_node = spec.ranks_per_node or None


def render(job: Job) -> str:
    """Render the batch script."""
    name = ELASTIC_TEMPLATE if job.elastic else JOB_TEMPLATE if job.spec else TEMPLATE
    return shell_templates.render(
        Path(__file__).with_name(name),
        job=job,
        save_s=SAVE_S,
        signal_lead_s=SIGNAL_LEAD_S,
        torchrun=shlex.quote(str(job.program)),
        podwright_train=shlex.quote(str(job.program)),
        failures=shlex.quote(str(job.run.elastic / "host-failures")),
        most_failures=MOST_FAILURES,
        within_s=WITHIN_S,
        left_status=LEFT,
        unable_status=UNABLE,
        ended_statuses=[FINISHED, USER_ERROR, DIVERGED, FAILED],
        run_dir=shlex.quote(str(job.run.root)),
        trainer_arguments=shlex.join(job.trainer_arguments),
        **(_of_container(job, job.spec) if job.spec else {}),
    )


def _of_container(job: Job, spec: JobSpec) -> dict[str, str]:
    mounts = ",".join([f"{job.run.root}:{job.run.root}", *spec.mounts])
    return {
        "log": shlex.quote(str(job.run.log)),
        "start": shlex.quote(str(job.run.start)),
        "container": shlex.quote(spec.container),
        "mounts": shlex.quote(mounts),
    }


def _write_job(job: Job, spec: JobSpec) -> None:
    """Write the job, the script of its nodes, and its files into the run's folder."""
    values = {"run_dir": job.run.root, "nodes": job.nodes, "ranks_per_node": job.nproc_per_node}
    values["ranks"] = job.nodes * job.nproc_per_node
    write_atomically(job.run.job, spec.to_json())
    write_atomically(
        job.run.start, start_script(spec, values, environment=job.environment, accelerator=job.accelerator)
    )
    for name, content in spec.files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        write_atomically(job.run.root / name, fill(text, values))


def _problems_of_job(spec: JobSpec, root: Path) -> Iterator[str]:
    """Yield problems of the folders and files that a job names, if they are on the run's own file system.

    Others may be there on the nodes alone.
    """
    environment, image = root / spec.environment, root / spec.container
    if spec.environment and _on_same_disk(environment, root) and not (environment / "bin").is_dir():
        yield f"environment: got {spec.environment}, which has no folder bin: name a virtual environment"
    if spec.container[:1] in ("/", ".") and _on_same_disk(image, root) and not image.is_file():
        yield f"container: got {spec.container}, which is not a file: name an image's file, or registry#image:tag"
    for name in spec.files:
        path = root / name
        if path.is_dir():
            yield f"files: {name} is a folder in {root}"
        above = [folder for folder in path.parents if folder.is_relative_to(root)]
        yield from (f"files: {name} needs the folder {folder}, which is a file" for folder in above if folder.is_file())


def _on_same_disk(path: Path, other: Path) -> bool:
    """Return whether two paths, or their existing parents, are on one file system."""
    first, second = (next(part for part in (each, *each.parents) if part.exists()) for each in (path, other))
    return first.stat().st_dev == second.stat().st_dev


def submit(job: Job) -> int:
    """Write the script into the run folder and submit it; return the job id.

    Raises:
        LaunchError: The environment or Slurm is missing, or Slurm rejects the job.
        OwnedRunError: Another job trains the run, or waits to.
    """
    if not job.program.exists():
        raise LaunchError(f"--environment {job.environment}: no {job.program}")
    if job.spec and (problems := list(_problems_of_job(job.spec, job.run.root))):
        raise LaunchError("\n".join(problems))
    with writable(job.run.root):
        job.run.root.mkdir(parents=True, exist_ok=True)
        if owner := other_owner(job.run.root):  # who made it since it was not there
            raise LaunchError(f"--run-dir: {job.run.root} is {owner}'s")
        with claim_of_run(job.run, Kind.LAUNCH) as claim:
            if job.elastic:
                make_closed(job.run.elastic)
            run_secret(job.run)
            if job.spec:
                _write_job(job, job.spec)
            write_atomically(job.run.sbatch, render(job))
            number = _submit_script(job)
            claim.give_to_job(str(number))
    return number


def _submit_script(job: Job) -> int:
    """Submit the run's script; return the job id."""
    command = ["sbatch", "--parsable", str(job.run.sbatch)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise LaunchError("sbatch not found: submit from a node of the cluster (Slurm is in /opt/slurm/bin)") from error
    except subprocess.CalledProcessError as error:
        raise LaunchError(f"Slurm rejected {job.run.sbatch}: {error.stderr.strip()}") from error
    return int(answer.split(";")[0])  # "number" or "number;cluster"


def read_nodes(partition: str | None, node_json: Path, provisioning_parameters: Path) -> NodeFacts:
    """Return the bootstrap's record of the nodes of ``partition``; empty on plain Slurm.

    Raises:
        LaunchError: There are several partitions to choose from, no partition has that name, or a file is damaged.
    """
    if not node_json.exists():
        return NodeFacts(hyperpod=HYPERPOD_MARK.exists())
    try:
        nodes = _recorded(partition, node_json, provisioning_parameters)
    except LaunchError:
        raise
    except DAMAGED as error:
        raise LaunchError(
            f"{node_json} or {provisioning_parameters} is damaged ({type(error).__name__}: {error}); let an "
            "administrator boot this node again"
        ) from error
    types = get_type_hints(NodeFacts)
    for name, value in vars(nodes).items():
        if not isinstance(value, types[name]) or (isinstance(value, str) and not value.isprintable()):
            given = textwrap.shorten(ascii(value), 60, placeholder=" …")
            raise LaunchError(f"{node_json}: {name}: got {given}; let an administrator boot this node again")
    return nodes


def _recorded(partition: str | None, node_json: Path, provisioning_parameters: Path) -> NodeFacts:
    record = json.loads(node_json.read_text())
    group, facts = record["partition"], record
    if record["role"] != "compute" or partition not in (None, record["partition"]):
        group, facts = _worker_group(partition, json.loads(provisioning_parameters.read_text()))
    return NodeFacts(
        partition=group,
        accelerator=facts["accelerator"],
        accelerators_per_node=facts["accelerators_per_node"],
        accelerator_name=facts["accelerator_name"],
        efa_interfaces=facts["efa_interfaces"],
        environment=record["environment"],
        shared_root=record["shared_root"],
        hyperpod=bool(record["cluster_arn"]),
    )


def _run_dir(args: argparse.Namespace, nodes: NodeFacts, job_name: str = "") -> Path:
    """Return the run's folder: the flag's value, or a folder named after the preset or the job."""
    name = args.preset or job_name or (args.job and args.job.stem)
    if args.run_dir is None and name is None:
        raise LaunchError("--run-dir or --preset is required: the run's folder, or its model")
    run_dir: Path = args.run_dir or Path(nodes.shared_root) / "runs" / name
    return Path(os.path.normpath(run_dir.absolute()))  # without `..`, which leads out of the shared folder


def _problems(args: argparse.Namespace, nodes: NodeFacts, nproc_per_node: int, root: Path) -> Iterator[str]:
    yield from _problems_of_words(args)
    yield from _problems_of_nodes(args)
    device = neuron.device_of(args.instance) if args.instance else nodes.accelerator_name
    if not args.job and (args.instance or nodes.accelerator == "neuron") and (problem := neuron.native_problem(device)):
        yield problem
    if nproc_per_node < 1:
        if args.nproc_per_node is None:
            yield "--nproc-per-node is required: these nodes have no accelerators to count"
        else:
            yield f"--nproc-per-node: got {nproc_per_node}, need at least 1"
    yield from _problems_of_run_dir(args, nodes, root)
    if args.time_limit is not None and _seconds(args.time_limit) < 2 * SIGNAL_LEAD_S:
        yield (
            f"--time-limit: got {args.time_limit}, need Slurm's [days-]hours:minutes:seconds or minutes, at least "
            f"{2 * SIGNAL_LEAD_S // 60} minutes: the last {SIGNAL_LEAD_S // 60} are reserved for saving"
        )


def _problems_of_run_dir(args: argparse.Namespace, nodes: NodeFacts, root: Path) -> Iterator[str]:
    if re.search(r"[^\w./+=@-]", str(root)):
        yield f"--run-dir: got {root}, need only letters, digits and ./+=@_-, because Slurm's log is there"
    if args.partition and not re.fullmatch(r"[\w.,-]+", args.partition):
        yield f"--partition: got {args.partition!r}, need a name, or several with commas"
    if nodes.shared_root and not root.is_relative_to(nodes.shared_root):
        yield f"--run-dir: got {root}, need a folder below {nodes.shared_root}, which all nodes see"
    if owner := other_owner(root):
        yield f"--run-dir: {root} belongs to {owner}, who could change your job's programs; name a folder of your own"
    if root.parent.is_dir() and may_be_exchanged(root):
        yield f"--run-dir: all users may rename what is in {root.parent}; use another folder, or chmod +t {root.parent}"
    if any(flag(argument.split("=")[0]) == "--run-dir" for argument in args.trainer_arguments):
        yield "write --run-dir before --: it also names the job's folder"


def _problems_of_nodes(args: argparse.Namespace) -> Iterator[str]:
    if args.nodes is None:
        yield "--nodes is required"
        return
    least, most = args.nodes
    if least < 1:
        yield f"--nodes: got {least}, need at least 1"
    if least > most:
        yield f"--nodes: got {least}-{most}, need the fewest nodes first"
    if args.spares is not None and args.spares < 0:
        yield f"--spares: got {args.spares}, need 0 or more"
    given = {flag(argument.split("=")[0]) for argument in args.trainer_arguments}
    if given & {"--min-nodes", "--max-nodes"}:
        yield "--min-nodes, --max-nodes: leave them out, --nodes 2-4 before -- sets both"
    if args.auto_resume and (least < most or args.spares):
        yield "--auto-resume: leave it out, hosts of an elastic run are jobs that Slurm requeues one by one"


def _trainer_arguments(args: argparse.Namespace) -> tuple[str, ...]:
    return (*(["--preset", args.preset] if args.preset else []), *args.trainer_arguments)


def _as_trainer_reads(words: Sequence[str]) -> argparse.Namespace:
    """Return the values of the trainer's flags."""
    parser = Parser(prog="podwright-train launch")
    sources.add_arguments(parser)
    given, unknown = parser.parse_known_args(as_shown(words, parser))
    given.unknown_words = unknown
    return given


def _problems_of_words(args: argparse.Namespace) -> Iterator[str]:
    """Yield words for the trainer that it does not know."""
    return sources.problems_of_words(_as_trainer_reads(args.trainer_arguments).unknown_words, config="-- --config")


def _check_policy(args: argparse.Namespace, nproc_per_node: int) -> None:
    """Raise ``LaunchError`` if the elastic run could not train on its fewest or its most nodes."""
    span = [f"--min-nodes={args.nodes.least}", f"--max-nodes={args.nodes.most}"]
    try:
        options = sources.load(_as_trainer_reads([*span, *_trainer_arguments(args)]))
        Policy.of(options, ranks_per_node=nproc_per_node)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    if args.spares and args.nodes.most == 1 and options.memory_checkpoint_freq:
        raise LaunchError(
            f"--spares {args.spares} with memory_checkpoint_freq {options.memory_checkpoint_freq}: one node has no "
            "partner that keeps a copy of its memory, so a spare would continue from disk; use --nodes 2 or more, or "
            "leave memory_checkpoint_freq out"
        )


def _worker_group(partition: str | None, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return partition and instance facts of the worker group of ``partition``."""
    groups = {group["partition_name"]: group["instance_group_name"] for group in parameters["worker_groups"]}
    if not groups:
        raise LaunchError("this cluster has no compute nodes")
    if partition is None and len(groups) > 1:
        raise LaunchError(f"--partition is required, one of {', '.join(sorted(groups))}")
    name = partition or next(iter(groups))
    if name not in groups:
        raise LaunchError(f"--partition: got {name}, need one of {', '.join(sorted(groups))}")
    return name, parameters["podwright"]["instance_facts"][groups[name]]


def _seconds(time_limit: str) -> int:
    """Return the seconds of a time in one of Slurm's formats (man sbatch, --time); 0 if it matches none."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time_limit)
    if not match:
        return 0
    days, first, second, third = (int(group) if group else None for group in match.groups())
    if days is None and third is None:  # minutes[:seconds]
        return 60 * (first or 0) + (second or 0)
    return 86400 * (days or 0) + 3600 * (first or 0) + 60 * (second or 0) + (third or 0)


def _gres(partition: str | None, gpus: int) -> str | None:
    """Return the GRES request for GPUs if Slurm tracks them; HyperPod's does since 2025."""
    command = ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
    try:
        counted = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None  # no Slurm to ask: --print elsewhere; sbatch itself will complain
    return f"gpu:{gpus}" if "gpu" in counted else None
