"""Measure the cost of a checkpoint: step times with saves in the background, in between, in memory, and without.

    python bench/checkpoint.py [--rounds 5] [--steps 8]
    torchrun --nproc-per-node 2 bench/checkpoint.py    each rank a host: memory is sent to the next

Smallest: python bench/checkpoint.py --rounds 1 --steps 2 --hidden-size 64 --num-layers 1 --context 64

Trains a Llama of some million parameters in this process, on a GPU if there is one, in rounds of a few steps. In each
round all kinds take their turn, so that what else the machine does is shared.
The time lost to a save is what a round took longer than one without, in steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from podwright_training.batch import Batch
from podwright_training.checkpoint.memory_tier import MemoryTier
from podwright_training.checkpoint.saver import Saved, Saver
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import DEFAULT_TIMEOUT_S, device_of, process_group
from podwright_training.job_store import JobStore
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel
from podwright_training.private_folder import make_private
from podwright_training.ranks import Hosts, Ranks
from podwright_training.run_folder import RunFolder
from podwright_training.run_secret import run_secret

MEMORY = "memory"
KINDS = ("none", "background", "in between", MEMORY)


def main() -> None:
    """Print the medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="per round; the save falls after the first")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    args = parser.parse_args()
    options = TrainConfig(
        hidden_size=args.hidden_size,
        intermediate_size=3 * args.hidden_size,
        num_layers=args.num_layers,
        num_heads=args.hidden_size // 32,
        vocab_size=2048,
        max_context_width=args.context,
        train_batch_size=args.batch,
        bf16=torch.cuda.is_available(),
        keep_checkpoints=1,
        memory_checkpoint_freq=1,
    )
    ranks = Ranks.from_environment()
    device = device_of(ranks, "auto")
    scratch = Path(tempfile.gettempdir()) / f"bench-checkpoint.{os.geteuid()}"  # the same for all ranks of this host
    make_private(scratch)
    store = JobStore(ranks, run_secret(RunFolder(scratch)), timeout_s=DEFAULT_TIMEOUT_S)
    with process_group(ranks, device, store=store):
        result = Bench(options, ranks, device, scratch).run(rounds=args.rounds, steps=args.steps)
        dist.barrier()  # before the first rank removes the files
    if ranks.rank == 0:
        shutil.rmtree(scratch)
        print(json.dumps(result, indent=1))


class Bench:
    """A model, its optimizer, and a saver of each kind."""

    def __init__(self, options: TrainConfig, ranks: Ranks, device: torch.device, scratch: Path) -> None:
        self._options = replace(options, run_dir=os.fspath(scratch))
        self._scratch = scratch
        self._device = device
        self._model = ParallelModel(self._options, ranks, device)
        self._optimizers = Optimizers(self._model.named_parameters(), self._options)
        shape = (options.train_batch_size, options.max_context_width)
        tokens = torch.randint(0, options.vocab_size, shape, generator=torch.Generator().manual_seed(ranks.rank))
        self._batch = Batch(tokens, tokens)
        self._tokens = tokens.numel() * ranks.world_size
        self._step = 0
        self._saved: list[Saved] = []
        self._savers = {
            kind: Saver(replace(self._options, async_checkpoints=kind == "background"), on_saved=self._saved.append)
            for kind in KINDS
            if kind != MEMORY
        }
        hosts = Hosts([f"host-{rank}" for rank in range(ranks.world_size)], ranks.rank)
        self._memory = MemoryTier(self._options, hosts, merge=lambda positions: positions[0])

    def run(self, *, rounds: int, steps: int) -> dict[str, float]:
        """Seconds of a step, and what a save costs in steps, medians over the rounds."""
        for kind in KINDS:  # warm: memory for the staged copy, files, compilers
            self._round(kind, steps=2)
        self._saved.clear()
        seconds = {kind: [] for kind in KINDS}  # type: dict[str, list[float]]
        for _ in range(rounds):
            for kind in KINDS:
                seconds[kind].append(self._round(kind, steps=steps))
        step_s = statistics.median(seconds["none"]) / steps
        lost = {
            kind: statistics.median(
                (took - without) / step_s for took, without in zip(seconds[kind], seconds["none"], strict=True)
            )
            for kind in KINDS[1:]
        }
        background = self._saved[0::2]
        for saver in self._savers.values():
            saver.__exit__(None, None, None)
        self._memory.__exit__(None, None, None)
        return {
            "state_mb": sum(file.stat().st_size for file in self._options.checkpoints.rglob("*.distcp")) / 1e6,
            "step_s": step_s,
            "pause_in_steps": statistics.median(saved.paused_s for saved in background) / step_s,
            "pause_in_steps_memory": self._memory.paused_s / step_s,
            "save_in_steps": statistics.median(saved.seconds for saved in background) / step_s,
            **{f"lost_in_steps_{kind.replace(' ', '_')}": value for kind, value in lost.items()},
        }

    def _round(self, kind: str, *, steps: int) -> float:
        """Seconds of some steps with one save among them; the wait for a save in the background is not theirs."""
        begin = perf_counter()
        for number in range(steps):
            self._model.forward_backward([self._batch], tokens=self._tokens)
            self._model.clip_grad_norm(1.0)
            self._optimizers.step(lr=1e-4)
            self._step += 1
            if number == 0 and kind != "none":
                self._save(kind)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        took = perf_counter() - begin
        if kind == MEMORY:
            self._memory.wait()
        else:
            self._savers[kind].finish()
        return took

    def _save(self, kind: str) -> None:
        state = TrainerState(
            step=self._step, sequences=0, data={}, model=asdict(self._options.model), world_size=self._tokens
        )
        saver = self._memory if kind == MEMORY else self._savers[kind]
        saver.save(state, weights=dict(self._model.named_parameters()), optimizers=self._optimizers)


if __name__ == "__main__":
    main()
