"""Run training on one rank: claim the run, check it, connect the ranks, and train."""

from __future__ import annotations

import os
import secrets
import shlex
from contextlib import ExitStack
from pathlib import Path

import torch

from podwright_training.beats import GENERATION, Pulse
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.storage import shared_listings
from podwright_training.device import device_of, process_group, use_host_cores
from podwright_training.errors import UserError
from podwright_training.job_store import JobStore
from podwright_training.loop import preflight
from podwright_training.loop.faults import lost_ranks, memory_snapshot
from podwright_training.loop.progress import RunProgress
from podwright_training.loop.trainer import Trainer
from podwright_training.ranks import Ranks
from podwright_training.run_claim import claims_of_training
from podwright_training.run_folder import RunFolder, writable
from podwright_training.run_secret import run_secret


def run(config: TrainConfig, ranks: Ranks) -> None:
    """Train, or resume training, until ``max_steps`` or a signal."""
    folder = RunFolder(Path(config.run_dir))
    with writable(folder.root):
        secret = run_secret(folder) if ranks.world_size > 1 else secrets.token_bytes()
    store = JobStore(ranks, secret, timeout_s=config.start_timeout_s)
    with lost_ranks(), shared_listings(store.of_first_rank), ExitStack() as claims:
        with store.answering():
            if not Pulse.from_environment().heard:  # The agents of an elastic run have claimed it already.
                store.of_first_rank("claim of the run", lambda: _claim(claims, config))
            tokenizer = preflight.check(config, ranks, of_first_rank=store.of_first_rank)
        device = device_of(ranks, config.device)
        make_repeatable(config)
        if config.cpu_offload and device.type != "cpu":
            use_host_cores(ranks)
        with process_group(ranks, device, store=store, timeout_s=config.start_timeout_s):
            with memory_snapshot(folder.memory_snapshot(ranks.rank), ranks, device):
                trainer = Trainer(config, ranks=ranks, device=device, tokenizer=tokenizer, store=store)
            trainer.train()
    if ranks.rank == 0 and (line := last_line(config, trainer.progress)):
        print(line, flush=True)


def last_line(config: TrainConfig, progress: RunProgress) -> str:
    """Return the last line of a run: what to do with it; empty if an elastic run decides."""
    run_dir, reason = shlex.quote(config.run_dir), progress.end_reason
    if reason == "signal":
        return "" if GENERATION in os.environ else f"next: the same command goes on behind step {progress.step:,}"
    line = f"next: podwright-train report --run-dir {run_dir}"
    if reason == "range":
        return line
    line += f"; podwright-train consolidate --run-dir {run_dir}"
    if "SLURM_JOB_ID" in os.environ:
        line += f"; on your machine: podwright fetch {shlex.quote(Path(config.run_dir).absolute().name)} --export"
    return line


def make_repeatable(config: TrainConfig) -> None:
    """Seed the random numbers; with ``deterministic``, make PyTorch reject nondeterministic operations."""
    torch.manual_seed(config.seed)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts.
        torch.use_deterministic_algorithms(True)


def _claim(claims: ExitStack, config: TrainConfig) -> None:
    """Claim the run, until this stack ends."""
    try:
        for claim in claims_of_training(config):
            claims.enter_context(claim)
    except OSError as error:
        raise UserError(f"run_dir {config.run_dir} is not writable: {error.strerror or error}") from error
