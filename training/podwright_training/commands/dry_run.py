"""``podwright-train dry-run``: run the step of a large job's ranks on one CPU, and count its memory and traffic."""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from podwright_common.command_line import add_json
from podwright_common.exit_status import FAILED
from podwright_training.command_result import print_document
from podwright_training.config import sources
from podwright_training.config.parallel_dims import problems
from podwright_training.errors import ConfigError, UserError
from podwright_training.hardware import MEMORY_GB
from podwright_training.ranks import Ranks
from podwright_training.worker_pool import run_all

ALL_KINDS = "all-kinds"
MOST_TOKENS = 100_000_000  # A larger micro-batch takes hours here, chunk by chunk, and fits no GPU.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train dry-run``, then one per option of ``TrainConfig``."""
    group = parser.add_argument_group(
        "dry run", "Nothing is allocated, sent or computed; no data, metrics, checkpoints."
    )
    group.add_argument("--world-size", type=_positive, required=True, metavar="N", help="ranks of the job")
    group.add_argument("--ranks-per-node", type=_positive, default=8, metavar="N", help="ranks per node. Default: 8")
    group.add_argument(
        "--rank", default=ALL_KINDS, help="the rank to run. Default: all-kinds, one of each pipeline position"
    )
    memory = group.add_mutually_exclusive_group()
    memory.add_argument("--memory-gb", type=_gb, metavar="GB", help="memory of a GPU; exit with 1 if a peak exceeds it")
    memory.add_argument(
        "--gpu",
        choices=sorted(MEMORY_GB),
        metavar="NAME",
        help=f"GPU type, instead of --memory-gb: one of {', '.join(sorted(MEMORY_GB))}",
    )
    add_json(group)
    sources.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the memory and traffic of a step on each kind of rank; return 1 if it does not fit, else 0."""
    config = sources.load(args)
    memory_gb = MEMORY_GB[args.gpu] if args.gpu else args.memory_gb
    nodes, remainder = divmod(args.world_size, args.ranks_per_node)
    if remainder and args.world_size > args.ranks_per_node:
        raise UserError(
            f"--world-size: got {args.world_size}, need a multiple of --ranks-per-node {args.ranks_per_node}"
        )
    tokens = config.train_batch_size * config.max_context_width
    if tokens > MOST_TOKENS:
        raise UserError(
            f"train_batch_size {config.train_batch_size} x max_context_width {config.max_context_width}: got "
            f"{tokens:,} tokens, need at most {MOST_TOKENS:,} in a micro-batch"
        )
    conflicts = list(problems(config, world_size=args.world_size, nodes=max(nodes, 1)))
    if conflicts:
        raise ConfigError(conflicts)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported: it warns of fake groups
    from podwright_training.dry_run import rank, step_report  # These imports take seconds.

    kinds = rank.kinds(config, args.world_size) if args.rank == ALL_KINDS else {_rank(args): "chosen"}
    per_node = min(args.ranks_per_node, args.world_size)
    context = get_context("forkserver")
    context.set_forkserver_preload([rank.__name__])  # imports torch once for all processes
    steps = []
    for number, kind in kinds.items():
        ranks = Ranks(number, args.world_size, number % per_node, per_node)
        if len(kinds) == 1:
            steps.append(rank.run(config, ranks, kind))
        else:  # a process each: PyTorch's caches remember the groups of another rank
            with ProcessPoolExecutor(1, mp_context=context) as process:
                steps += run_all(process, rank.run, [(config, ranks, kind)])
        if not args.json:
            text = step_report.text(config, steps[-1], world_size=args.world_size, memory_gb=memory_gb)
            print(text, flush=True)
    if args.json:
        print_document(step_report.document(config, steps, world_size=args.world_size, memory_gb=memory_gb))
    exceeds = memory_gb is not None and any(step.peak_bytes > memory_gb * 1e9 for step in steps)
    return FAILED if exceeds else 0


def _rank(args: argparse.Namespace) -> int:
    if not args.rank.isdecimal() or int(args.rank) >= args.world_size:
        raise UserError(f"--rank: got {args.rank}, need {ALL_KINDS} or 0 to {args.world_size - 1}")
    return int(args.rank)


def _gb(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:  # NaN is neither: no peak exceeds it
        raise argparse.ArgumentTypeError(f"got {text}, need a positive number")
    return value


def _positive(text: str) -> int:
    value = int(text) if text.strip().isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text}, need a positive whole number")
    return value
