"""Count what every GPU of a large job does at each step, with a fake process group of eight ranks."""

import faulthandler
import gc
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from podwright_training.__main__ import main
from podwright_training.batch import Batch
from podwright_training.checkpoint.saver import TIMEOUT, Saver
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import limit_waits, process_group
from podwright_training.errors import UserError
from podwright_training.loop import garbage, trainer
from podwright_training.loop.faults import StallWatch, memory_snapshot
from podwright_training.loop.garbage import manual_collection
from podwright_training.loop.trainer import Trainer
from podwright_training.model import llama
from podwright_training.optim import Optimizers, clip_adaptively
from podwright_training.parallel import ParallelModel
from podwright_training.parallel.pipeline import Pipeline
from podwright_training.ranks import Ranks

RANKS = 8
CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "max_context_width": 16,
    "bf16": False,
    "device": "cpu",
}


@pytest.fixture
def first_rank():
    """Builds the first rank's model of a job of eight, whose collectives move nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)

    def build(**options):
        config = TrainConfig(**SMALL, **options)
        return config, ParallelModel(config, Ranks(0, RANKS, 0, RANKS), CPU)

    yield build
    dist.destroy_process_group()


def batch():
    """Two sequences."""
    tokens = torch.arange(2 * 17).reshape(2, 17) % 96
    return Batch(tokens[:, :-1], tokens[:, 1:])


def kept_elements(model):
    """Elements of gradients on this rank: shards, and what FSDP keeps before it reduces."""
    modules = [module for part in model._stages for module in part.modules() if isinstance(module, FSDPModule)]
    groups = [module._get_fsdp_state()._fsdp_param_group for module in modules]
    kept = 0
    for item in (item for group in groups if group for item in group.fsdp_params):
        shard, whole = item.sharded_param.grad, getattr(item, "_unsharded_param", None)
        kept += shard.to_local().numel() if shard is not None else 0
        kept += whole.grad.numel() if whole is not None and whole.grad is not None else 0
        kept += 0 if item.unsharded_accumulated_grad is None else item.unsharded_accumulated_grad.numel()
    return kept


@pytest.mark.parametrize(("accumulated_gradients", "share"), [("sharded", 1 / RANKS), ("whole", 1)])
def test_gradients_between_micro_batches(first_rank, accumulated_gradients, share):
    """By default a rank keeps its shard of the accumulated gradient; on request all of it, for less communication."""
    config, model = first_rank(accumulated_gradients=accumulated_gradients)
    found = []
    stage = model._stages[0]
    stage.register_forward_pre_hook(lambda *_: found.append(kept_elements(model)))
    model.forward_backward([batch(), batch()], tokens=64)
    assert found[0] == 0
    assert found[1] == pytest.approx(share * config.model.parameters, rel=0.02)
    assert kept_elements(model) == pytest.approx(config.model.parameters / RANKS, rel=0.02)


@pytest.mark.parametrize(
    ("schedule", "accumulated_gradients", "share"),
    [
        ("1f1b", "sharded", 2 / RANKS),
        ("1f1b", "whole", 1),
        ("interleaved_1f1b", "sharded", 2 / RANKS),
        ("zero_bubble", "sharded", 1),
    ],
)
def test_gradients_between_micro_batches_of_a_pipeline(first_rank, monkeypatch, schedule, accumulated_gradients, share):
    """A rank keeps its shard of its stages' gradients; all where asked to, or where backward passes are split."""
    _, model = first_rank(
        pipeline_parallel=2,
        pipeline_schedule=schedule,
        pipeline_micro_batches=2,
        train_batch_size=2,
        accumulated_gradients=accumulated_gradients,
    )
    found, backward = [], PipelineStage.backward_one_chunk

    def recorded(stage, *arguments, **options):
        backward(stage, *arguments, **options)
        found.append(kept_elements(model))

    monkeypatch.setattr(PipelineStage, "backward_one_chunk", recorded)
    agreed = torch.ones(1, dtype=torch.int32)  # that all stages know the shapes of what they receive
    monkeypatch.setattr(PipelineStage, "_warmup_backward_result", lambda *_, **_options: agreed)
    own = sum(item.numel() for _, item in model.named_parameters())
    model.forward_backward([batch(), batch()], tokens=128)
    assert max(found) == pytest.approx(share * own, rel=0.02)
    assert kept_elements(model) == pytest.approx(own * 2 / RANKS, rel=0.02)


def test_a_schedule_is_built_once(first_rank, monkeypatch):
    """Steps of the same sizes share stages and schedules, also where the noise scale takes a batch in two parts."""
    _, model = first_rank(pipeline_parallel=2, pipeline_micro_batches=2, train_batch_size=2)
    built, build = [], Pipeline._make_schedule
    monkeypatch.setattr(Pipeline, "_make_schedule", lambda *arguments: built.append(1) or build(*arguments))
    agreed = torch.ones(1, dtype=torch.int32)  # that all stages know the shapes of what they receive
    monkeypatch.setattr(PipelineStage, "_warmup_backward_result", lambda *_, **_options: agreed)
    whole = [batch(), batch(), batch()]
    for batches in (whole, whole, whole[:1], whole[1:], whole, whole[:1], whole[1:]):
        model.forward_backward(batches, tokens=32 * len(batches))
    assert len(built) == 3


class Waits(TorchDispatchMode):
    """Counts the operations that make the host wait for a device, or copy its own numbers there."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name in {"aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero"}:
            self.found.append(function._schema.name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"optimizer": "muon", "ema_decay": 0.9, "adaptive_grad_clip": 0.1}])
def test_no_step_waits_for_the_device(first_rank, options):
    """Forward, backward, clipping and update give the device work only: a GPU's queue never runs empty between logs."""
    config, model = first_rank(**options)
    optimizers = Optimizers(model.named_parameters(), config)
    optimizers.allocate()
    with Waits() as waits:
        model.forward_backward([batch(), batch()], tokens=64)
        if config.adaptive_grad_clip:
            clip_adaptively((item for _, item in model.named_parameters()), config.adaptive_grad_clip)
        model.clip_grad_norm(1.0)
        optimizers.step(lr=1e-3)
    assert waits.found == []


def test_waits_are_limited_but_those_for_checkpoints():
    """After the first step a rank waits a shorter time for the others."""
    with process_group(Ranks(), CPU, timeout_s=1800):
        saving = dist.new_group(backend="gloo")
        before = timeout_s(saving)
        assert timeout_s(dist.group.WORLD) == 1800
        limit_waits(5, besides=saving)
        assert timeout_s(dist.group.WORLD) == 5
        assert timeout_s(saving) == before


def timeout_s(group):
    """The longest wait of a process group."""
    return group._get_backend(CPU).options._timeout.total_seconds()


def test_a_stall_leaves_the_stacks_of_its_rank(tmp_path):
    """They are in a file of the rank when no step ends in time; without a stall there is none."""
    path = tmp_path / "stacks" / "rank-00003.txt"
    with StallWatch(path, timeout_s=3600) as stalls:
        stalls.alive(3600)
    assert not path.exists()
    with StallWatch(path, timeout_s=0.05):
        while not path.stat().st_size:
            time.sleep(0.05)
    assert "test_a_stall_leaves_the_stacks" in path.read_text()
    faulthandler.cancel_dump_traceback_later()


def test_only_a_stall_is_one(tiny_flags, tmp_path, monkeypatch):
    """Each batch of a validation begins a wait anew, and a save of any length is none before its own limit."""
    limits, in_save, in_batches = [], [], []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **_: limits.append(seconds))

    def save(*arguments, write=Saver.save, **more):
        in_save.append(limits[-1])
        return write(*arguments, **more)

    def evaluate(*arguments, compute=ParallelModel.evaluate):
        in_batches.append((len(limits), limits[-1]))
        return compute(*arguments)

    monkeypatch.setattr(Saver, "save", save)
    monkeypatch.setattr(ParallelModel, "evaluate", evaluate)
    waits = {"start_timeout_s": 800, "step_timeout_s": 100, "async_checkpoints": 0}
    steps = {"max_steps": 4, "validation_freq": 2, "checkpoint_freq": 2}
    assert main(["train", *tiny_flags(tmp_path, ranks=1, val_batch_size=4, **waits, **steps)]) == 0
    assert in_save == [TIMEOUT.total_seconds() / 2] * 2
    assert [limit for _, limit in in_batches] == [50] * 8
    assert len({number for number, _ in in_batches}) == 8
    begun = limits.index(50)
    assert set(limits[:begun]) == {400, TIMEOUT.total_seconds() / 2}
    assert 400 not in limits[begun:]


def test_out_of_memory_says_what_to_do(tmp_path):
    """One line for the user, with the rank."""
    with (
        pytest.raises(UserError, match=r"rank 7 on .* is out of memory: CUDA out of memory.* Lower train_batch_size"),
        memory_snapshot(tmp_path / "rank-00007.pickle", Ranks(7, 8), CPU),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(("owner", "name"), [(trainer, "Optimizers"), (Trainer, "train_step")])
def test_out_of_memory_is_said_before_anything_waits_for_other_ranks(
    tiny_flags, tmp_path, monkeypatch, capsys, owner, name
):
    """The end of a process group may wait for ranks that are in a collective: the line comes first, and once."""
    said = []

    def exhaust(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def destroy(*arguments, of_torch=dist.destroy_process_group):
        said.append(capsys.readouterr().err)
        of_torch(*arguments)

    monkeypatch.setattr(owner, name, exhaust)
    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    assert main(["train", *tiny_flags(tmp_path, ranks=1)]) == 2
    assert "error: rank 0 on " in said[0]
    assert "is out of memory: CUDA out of memory" in said[0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("failure", [None, NotADirectoryError(20, "Not a directory"), RuntimeError("CUDA error: 2")])
def test_out_of_memory_on_a_gpu_leaves_a_snapshot(tmp_path, monkeypatch, caplog, failure):
    """The error names the file, if it could be written; the reason why not hides nothing."""
    asked = []

    def dump(path):
        if failure:
            raise failure
        Path(path).write_bytes(b"snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: asked.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    path = tmp_path / "memory" / "rank-00007.pickle"
    with (
        pytest.raises(UserError, match="out of memory: CUDA out of memory") as caught,
        memory_snapshot(path, Ranks(7, 8), torch.device("cuda")),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")
    assert asked[0]["max_entries"] > 0
    assert path.is_file() == (failure is None) == str(caught.value).endswith(f"memory_viz: {path}")
    assert caplog.messages == ([f"cannot write {path}: {failure}"] if failure else [])


def test_garbage_is_collected_at_the_same_steps_on_all_ranks(tiny_flags, tmp_path, monkeypatch):
    """While a run trains, Python collects nothing by itself; every so many steps young garbage is collected."""
    steps, collected, automatic = [], [], []

    def take_step(trainer, take=Trainer.train_step):
        take(trainer)
        steps.append(trainer.progress.step)
        automatic.append(gc.isenabled())

    def note(phase, info):
        if phase == "start" and steps and not automatic[-1]:
            collected.append((steps[-1], info["generation"]))

    monkeypatch.setattr(Trainer, "train_step", take_step)
    monkeypatch.setattr(garbage, "EVERY_STEPS", 3)
    gc.callbacks.append(note)
    try:
        assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=7, checkpoint_freq=7)]) == 0
    finally:
        gc.callbacks.remove(note)
    assert automatic == [False] * 7
    assert [found for found in collected if found[0] < 7] == [(3, garbage.YOUNG), (6, garbage.YOUNG)]
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_afterwards_what_it_was(enabled):
    """Also when the block fails."""
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with suppress(KeyError), manual_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_only_weights_that_nothing_overwrites_are_drawn(tiny_flags, tmp_path, monkeypatch):
    """A new run draws every parameter, a resumed one and one that starts from weights none."""
    drawn = []

    def fill(parameter, *, draw=llama._fill, **options):
        drawn.append(parameter.shape)
        draw(parameter, **options)

    monkeypatch.setattr(llama, "_fill", fill)
    counts = []
    for folder, options in (("a", {}), ("a", {"max_steps": 2}), ("b", {"init_from": tmp_path / "a" / "checkpoints"})):
        flags = tiny_flags(tmp_path / folder, ranks=1, **{"max_steps": 1, "ema_decay": 0.9, **options})
        assert main(["train", *flags]) == 0
        counts.append(len(drawn))
        drawn.clear()
    assert counts[0] > 0
    assert counts[1:] == [0, 0]
