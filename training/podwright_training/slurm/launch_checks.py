"""Check the flags of ``podwright-train launch`` against each other, the nodes and the run's folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from podwright_common.command_line import Parser
from podwright_training import neuron
from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig
from podwright_training.elastic.policy import Policy
from podwright_training.errors import ConfigError, LaunchError
from podwright_training.private_folder import may_be_exchanged, other_owner
from podwright_training.slurm.batch_script import SIGNAL_LEAD_S
from podwright_training.slurm.node_facts import NodeFacts
from podwright_training.spelling import flag, parse_known

FOREIGN = ("job", "nproc_per_node", "time_limit", "accelerator", "efa")  # options that --backend nxdt lacks


class NodeRange(NamedTuple):
    """The fewest and the most nodes."""

    min_nodes: int
    max_nodes: int

    @classmethod
    def parse(cls, text: str) -> NodeRange:
        """Read ``4`` or ``2-4``."""
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"got {text}, need a number of nodes such as 4, or a range such as 2-4")
        return cls(int(match[1]), int(match[2] or match[1]))


def problems_of_nxdt(args: argparse.Namespace) -> Iterator[str]:
    """Yield flags that conflict with ``--backend nxdt``."""
    conflicting = [name for name in FOREIGN if getattr(args, name) is not None]
    yield from (f"{flag(name)}: leave it out, --backend nxdt has none" for name in conflicting)
    yield from problems_of_trainer_words(args)
    if args.nodes:
        yield from _problems_of_nodes(args)
    if args.spares or (args.nodes and args.nodes.min_nodes < args.nodes.max_nodes):
        yield "--nodes: NxD Training is not elastic, give one number and no --spares"


def problems_of_launch(args: argparse.Namespace, nodes: NodeFacts, nproc_per_node: int, root: Path) -> Iterator[str]:
    """Yield what is wrong with the flags, the nodes or the run's folder, one line each."""
    yield from problems_of_trainer_words(args)
    yield from _problems_of_nodes(args)
    device = neuron.device_of(args.instance) if args.instance else nodes.accelerator_name
    if not args.job and (args.instance or nodes.accelerator == "neuron") and (problem := neuron.native_problem(device)):
        yield problem
    if nproc_per_node < 1:
        if args.nproc_per_node is None:
            yield "--nproc-per-node is required: these nodes have no accelerators to count"
        else:
            yield f"--nproc-per-node: got {nproc_per_node}, need at least 1"
    yield from problems_of_run_dir(args, nodes, root)
    if args.time_limit is not None and _seconds(args.time_limit) < 2 * SIGNAL_LEAD_S:
        yield (
            f"--time-limit: got {args.time_limit}, need Slurm's [days-]hours:minutes:seconds or minutes, at least "
            f"{2 * SIGNAL_LEAD_S // 60} minutes: the last {SIGNAL_LEAD_S // 60} are reserved for saving"
        )


def problems_of_run_dir(args: argparse.Namespace, nodes: NodeFacts, root: Path) -> Iterator[str]:
    """Yield why a job on these nodes cannot have ``root`` as its run's folder, one line each."""
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
    min_nodes, max_nodes = args.nodes
    if min_nodes < 1:
        yield f"--nodes: got {min_nodes}, need at least 1"
    if min_nodes > max_nodes:
        yield f"--nodes: got {min_nodes}-{max_nodes}, need the fewest nodes first"
    if args.spares is not None and args.spares < 0:
        yield f"--spares: got {args.spares}, need 0 or more"
    flags = {flag(argument.split("=")[0]) for argument in args.trainer_arguments}
    if flags & {"--min-nodes", "--max-nodes"}:
        yield "--min-nodes, --max-nodes: leave them out, --nodes 2-4 before -- sets both"
    if args.auto_resume and (min_nodes < max_nodes or args.spares):
        yield "--auto-resume: leave it out, hosts of an elastic run are jobs that Slurm requeues one by one"


def trainer_arguments(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the flags that the job passes to ``podwright-train train``."""
    return (*(["--preset", args.preset] if args.preset else []), *args.trainer_arguments)


def trainer_values(words: Sequence[str]) -> argparse.Namespace:
    """Return the values of the trainer's flags."""
    parser = Parser(prog="podwright-train launch")
    sources.add_arguments(parser)
    arguments, unknown = parse_known(parser, words)
    arguments.unknown_words = unknown
    return arguments


def problems_of_trainer_words(args: argparse.Namespace) -> Iterator[str]:
    """Yield words after ``--`` that the trainer does not accept."""
    return sources.problems_of_words(trainer_values(args.trainer_arguments).unknown_words, config="-- --config")


def trainer_config(args: argparse.Namespace) -> TrainConfig:
    """Return the configuration of the trainer's flags; raise ``LaunchError`` if they or their file are wrong."""
    span = [f"--min-nodes={args.nodes.min_nodes}", f"--max-nodes={args.nodes.max_nodes}"]
    is_elastic = args.nodes.min_nodes < args.nodes.max_nodes or args.spares
    try:
        return sources.load_with_variables(trainer_values([*(span if is_elastic else []), *trainer_arguments(args)]))
    except ConfigError as error:
        raise LaunchError(str(error)) from error


def check_policy(args: argparse.Namespace, nproc_per_node: int) -> None:
    """Raise ``LaunchError`` if the elastic run could not train on its fewest or its most nodes."""
    config = trainer_config(args)
    try:
        Policy.of(config, ranks_per_node=nproc_per_node)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    if args.spares and args.nodes.max_nodes == 1 and config.memory_checkpoint_freq:
        raise LaunchError(
            f"--spares {args.spares} with memory_checkpoint_freq {config.memory_checkpoint_freq}: one node has no "
            "partner that keeps a copy of its memory, so a spare would continue from disk; use --nodes 2 or more, or "
            "leave memory_checkpoint_freq out"
        )


def _seconds(time_limit: str) -> int:
    """Return the seconds of a time in one of Slurm's formats (man sbatch, --time); 0 if it matches none."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time_limit)
    if not match:
        return 0
    numbers = [int(group) for group in match.groups()[1:] if group]
    is_minutes = match[1] is None and len(numbers) < 3  # noqa: PLR2004 - minutes[:seconds]
    hours, minutes, seconds = ([0, *numbers, 0] if is_minutes else [*numbers, 0, 0])[:3]
    return 86400 * int(match[1] or 0) + 3600 * hours + 60 * minutes + seconds
