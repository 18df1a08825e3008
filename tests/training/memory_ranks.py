"""Run by test_memory_checkpoints.py on four ranks: damage checkpoints in memory, and ask for the newest each time."""

import shutil
import sys
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
import torch.distributed as dist

from podwright_training.checkpoint.memory_tier import MemoryTier
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.config.train_config import TrainConfig
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel
from podwright_training.ranks import Hosts, Ranks

FIRST, SECOND = 3, 5
NAME = f"step-{SECOND:08}"


def change(path):
    """Flip one byte."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    """Leave half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path):
    """Leave nothing."""
    path.unlink()


class Run:
    """Two checkpoints in the memory of two hosts."""

    def __init__(self, folder):
        shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_layers": 1, "num_heads": 4}
        places = {"run_dir": str(folder / "run"), "memory_checkpoint_dir": str(folder)}
        options = TrainConfig(**places, **shape, num_key_value_heads=2, bf16=False, memory_checkpoint_freq=1)
        self.shape = asdict(options.model)
        ranks = Ranks.from_environment()
        self.model = ParallelModel(options, ranks, torch.device("cpu"))
        self.optimizers = Optimizers(self.model.named_parameters(), options)
        self.optimizers.allocate()
        self.tier = MemoryTier(options, Hosts(list("aabb"), ranks.rank), merge=lambda positions: {"of": positions})
        for step in (FIRST, SECOND):
            self.save(step)
        self.top = self.tier.folder.root.parent
        self.saved = folder / "saved"
        self.first_rank(lambda: shutil.copytree(self.top, self.saved))

    @property
    def tensors(self):
        return {"weights": dict(self.model.named_parameters()), "optimizers": self.optimizers}

    def save(self, step):
        """Save weights that are all the step's number."""
        self.fill(step)
        state = TrainerState(step=step, sequences=0, data={}, model=self.shape, world_size=4)
        self.tier.save(state, **self.tensors)
        self.tier.wait()

    @torch.no_grad()
    def fill(self, value):
        for _, parameter in self.model.named_parameters():
            parameter.fill_(value)

    @staticmethod
    def first_rank(action) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            action()
        dist.barrier()

    def newest_after(self, action):
        """Return the step of the newest intact checkpoint after the first rank has done some damage."""
        self.first_rank(action)
        found = self.tier.newest(at_least=0)
        return found.step if found else None

    def restored(self):
        shutil.rmtree(self.top)
        shutil.copytree(self.saved, self.top)


def check_harm_to_every_file(run):
    """One copy is enough, of the manifest too; without both the checkpoint before is the newest."""
    names = sorted(path.name for path in (run.top / "a" / NAME).iterdir())
    for name, harm in zip(names, cycle((change, cut, remove)), strict=False):
        one, other = (partial(harm, run.top / host / NAME / name) for host in "ab")
        assert run.newest_after(one) == SECOND, (harm.__doc__, name)
        assert run.newest_after(other) == FIRST, (harm.__doc__, name)
        run.first_rank(run.restored)


def check_hosts_that_died_between_two_renames(run):
    """One host has the manifest, the other only its files: they are complete together, and can be loaded."""

    def interrupt():
        named = run.top / "b" / NAME
        (named / "manifest.json").unlink()
        named.rename(named.with_name(f".{NAME}.partial"))
        for path in (run.top / "a" / NAME).glob("__2_*"):
            path.unlink()

    run.first_rank(interrupt)
    found = run.tier.newest(at_least=0)
    run.fill(0)
    state = run.tier.restore(found, **run.tensors)
    assert state.step == SECOND
    assert state.data == {"of": [{}] * 4}
    assert all((parameter.to_local() == SECOND).all() for _, parameter in run.model.named_parameters())
    run.tier.keep(SECOND)


def check_a_run_that_went_back(run):
    """Nothing is left of steps that do not count, and an earlier step is due immediately."""
    run.tier.keep(None)
    assert run.tier.newest(at_least=0) is None
    assert run.tier.due(FIRST)
    run.save(FIRST)
    assert run.tier.newest(at_least=0).step == FIRST


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    run = Run(Path(sys.argv[1]))
    check_harm_to_every_file(run)
    check_hosts_that_died_between_two_renames(run)
    check_a_run_that_went_back(run)
    run.tier.__exit__(None, None, None)
    dist.barrier()
    assert not run.top.exists()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
