"""``podwright-train join``: take part in an elastic run, as one of its hosts."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket

from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig
from podwright_training.elastic.policy import Policy
from podwright_training.errors import ConfigError
from podwright_training.run_variables import read_variables, variables_in_use

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train join``: those of the host, and of ``train``."""
    sources.add_arguments(parser)
    group = parser.add_argument_group("host")
    group.add_argument("--nproc-per-node", type=int, default=1, metavar="N", help="ranks of each host. Default: 1")
    group.add_argument(
        "--member",
        type=int,
        metavar="N",
        default=int(os.environ.get("SLURM_ARRAY_TASK_ID") or 0),
        help="unique number of this host. Default: its task id in the Slurm array, else 0",
    )
    group.add_argument(
        "--address",
        metavar="NAME",
        default=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        help="address at which other hosts reach this one. Default: its host name",
    )


def run(args: argparse.Namespace) -> int:
    """Take part until the run ends, or this host is asked to leave; return the exit status."""
    config = sources.load_with_variables(args)
    if args.nproc_per_node < 1:
        raise ConfigError([f"--nproc-per-node: got {args.nproc_per_node}, need at least 1"])
    policy = Policy.of(config, ranks_per_node=args.nproc_per_node)
    with variables_in_use(read_variables(config.env, config.secrets)):  # Ranks inherit them.
        return _take_part(config, policy, args)


def _take_part(config: TrainConfig, policy: Policy, args: argparse.Namespace) -> int:
    if args.nproc_per_node > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun sets it too.
    from podwright_training.elastic.agent import Agent
    from podwright_training.elastic.membership import UNABLE

    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    try:
        agent = Agent(config, policy, number=args.member, address=args.address, job=job)
        return asyncio.run(agent.run())
    except OSError as error:  # a full disk or memory, which may have room when Slurm starts this host again
        logger.error("elastic: this host cannot take part: %s", error)  # noqa: TRY400 - one line
        return UNABLE
