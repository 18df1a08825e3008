"""Run one rank's step among ranks that do not exist."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from podwright_training.batch import Batch
from podwright_training.config.compilation import is_compiled
from podwright_training.config.parallel_dims import ParallelDims, vocabulary_shares
from podwright_training.config.train_config import TrainConfig
from podwright_training.dry_run import device_memory, gpu
from podwright_training.dry_run.graph_capture import Compiler
from podwright_training.dry_run.rank_step import CollectiveCalls, Compilation, RankStep
from podwright_training.dry_run.recorder import Recorder
from podwright_training.local_tensor import local_tensor
from podwright_training.model import Head, LlamaForCausalLM, experts
from podwright_training.optim import Optimizers
from podwright_training.parallel import Meshes, ParallelModel, divide, model
from podwright_training.parallel.stage import Stage
from podwright_training.ranks import Ranks
from podwright_training.replacement import replaced


def kinds(config: TrainConfig, world_size: int) -> dict[int, str]:
    """Return one rank of each kind: ranks differ by their pipeline stages only.

    Of a V, the rank at its tip has no end of the model, but keeps most: it waits longest for the gradients of weights.
    """
    stages = config.pipeline_parallel
    if stages == 1:
        return {0: "all ranks"}
    stage_ranks = world_size // stages
    in_a_v = config.pipeline_schedule == "zero_bubble_v"
    first_name, last_name = ("first and last stage", "innermost stages") if in_a_v else ("first stage", "last stage")
    name_by_rank = {0: first_name, stage_ranks: "middle stages", (stages - 1) * stage_ranks: last_name}
    return name_by_rank if stages > 2 else {0: first_name, stage_ranks: last_name}  # noqa: PLR2004 - ends only


def run(config: TrainConfig, ranks: Ranks, kind: str) -> RankStep:
    """Take two steps as ``ranks.rank`` of a job and record the second; the first allocates lasting memory.

    Of a compiled run both are compiled, and a third that is not is recorded: a graph's operations, one by one, would
    keep what a fused kernel does not write.
    """
    device = torch.device("cpu") if config.device == "cpu" else gpu.register()
    backend = f"cpu:fake,{device.type}:fake" if device.type != "cpu" else "fake"
    dist.init_process_group(backend, store=FakeStore(), rank=ranks.rank, world_size=ranks.world_size)
    try:
        return _run(config, ranks, kind, device)
    finally:
        dist.destroy_process_group()


def _run(config: TrainConfig, ranks: Ranks, kind: str, device: torch.device) -> RankStep:
    began = time.monotonic()
    dims = ParallelDims.of(config, world_size=ranks.world_size, nodes=ranks.nodes)
    meshes = Meshes.of(dims, device.type)  # real tensors: their numbers are ranks
    recorder = Recorder(device.type, _groups(meshes), words=config.vocab_size // vocabulary_shares(config))
    # in this thread, so that a backward pass has the trainer's lines on its stack
    one_thread = torch.autograd.set_multithreading_enabled(False)
    compiler = Compiler()
    compiled = is_compiled(config, device.type)
    capturing = compiler.capturing() if compiled else nullcontext()
    with (
        capturing,
        one_thread,
        FakeTensorMode(allow_non_fake_inputs=True),
        recorder.watching(),
        _without_values(recorder),
    ):
        parallel = ParallelModel(config, ranks, device, meshes=meshes)
        parameters = dict(parallel.named_parameters())
        recorder.memory.mark(parameters.values(), device_memory.WEIGHTS)
        optimizers = Optimizers(parameters.items(), config)
        optimizers.allocate()
        recorder.memory.mark(optimizers.state_dict().values(), device_memory.OPTIMIZER)
        start_s = time.monotonic() - began
        _step(config, parallel, optimizers, recorder)
        if compiled:
            _step(config, parallel, optimizers, recorder)
            _leave_uncompiled(parallel)
        with recorder.recording():
            _step(config, parallel, optimizers, recorder)
    memory_bytes = recorder.memory.peak()
    return RankStep(
        rank=ranks.rank,
        kind=kind,
        parameters=sum(local_tensor(item).numel() for item in parameters.values()),
        peak_bytes=sum(memory_bytes.values()),
        memory_bytes=memory_bytes,
        saved_bytes=sum(map(_bytes, (*parameters.values(), *optimizers.state_dict().values()))),
        collectives=[CollectiveCalls(*key, *traffic) for key, traffic in recorder.collectives.items()],
        kernels=dict(recorder.kernels),
        waits=dict(recorder.waits),
        flops=recorder.flops,
        compilation=compiler.result() if compiled else Compilation(),
        start_s=round(start_s, 3),
    )


def _leave_uncompiled(parallel: ParallelModel) -> None:
    for part in parallel.parts:
        for module in part.modules():
            module._compiled_call_impl = None  # noqa: SLF001 - what Module.compile sets
            if isinstance(module, Head):
                module.compiled = False


def _step(config: TrainConfig, parallel: ParallelModel, optimizers: Optimizers, recorder: Recorder) -> None:
    """Take a step as the trainer does, without its data, metrics and checks."""
    size, length = config.train_batch_size, config.max_context_width
    batches = []
    for _ in range(config.micro_batches(parallel.data_size)):
        tokens = torch.zeros((size, length + 1), dtype=torch.int64)
        positions = torch.zeros((size, length), dtype=torch.int64) if config.document_mask else None
        batches.append(Batch(tokens[:, :-1], tokens[:, 1:], positions))  # slices, as those of data.stream
    parallel.forward_backward(batches, tokens=config.train_batch_size * config.max_context_width)
    gradients = (item.grad for _, item in parallel.named_parameters())
    recorder.memory.mark((item for item in gradients if item is not None), device_memory.GRADIENTS)
    parallel.clip_grad_norm(config.grad_clip)
    optimizers.step(lr=config.lr)


def _groups(meshes: Meshes) -> Mapping[str, str]:
    """Return the dimension that each process group stands for."""
    every = (meshes.ranks, meshes.matrices, meshes.data_parallel, meshes.experts)
    named = chain.from_iterable(
        ((mesh.get_group(name).group_name, name) for name in mesh.mesh_dim_names or ()) for mesh in every
    )
    return dict(named)


@contextmanager
def _without_values(recorder: Recorder) -> Iterator[None]:
    """Skip operations that need values: weights stay uninitialized, and tokens are routed to experts evenly."""

    def evenly(counts: Tensor, total: int) -> list[int]:
        recorder.wait()
        return [total // len(counts)] * len(counts)

    def init_weights(all_stages: LlamaForCausalLM, *, seed: int) -> None:  # noqa: ARG001
        all_stages.reset_buffers()

    def real_stages_of(*arguments: Any) -> list[Stage]:
        with _disable_current_modes():  # all on the meta device
            return divide.stages_of(*arguments)

    with (
        replaced(model, "stages_of", real_stages_of),
        replaced(experts, "to_host", evenly),
        replaced(LlamaForCausalLM, "init_weights", init_weights),
    ):
        yield


def _bytes(tensor: Tensor) -> int:
    local = local_tensor(tensor)
    return local.numel() * local.element_size()
