"""Processes, devices, and how the model is divided among them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from podwright_training.config import TrainConfig
from podwright_training.hardware import peak_flops
from podwright_training.model import Block, LlamaForCausalLM


@dataclass(frozen=True)
class Ranks:
    """This process among all of a job, as torchrun's environment variables say; alone without them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @classmethod
    def from_environment(cls) -> Ranks:
        """Read ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``."""
        if "RANK" not in os.environ:
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))


def device_of(ranks: Ranks, wish: str) -> torch.device:
    """The device of this rank; ``wish`` is ``TrainConfig.device``."""
    if wish == "cpu" or (wish == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", ranks.local_rank)


def device_problem(ranks: Ranks, wish: str) -> str | None:
    """Why this host cannot give each of its ranks the device wished for."""
    if wish == "cuda" and not torch.cuda.is_available():
        return "device = cuda: this machine has no CUDA device that torch can use; choose --device cpu"
    if wish != "cpu" and 0 < torch.cuda.device_count() < ranks.local_world_size:
        return f"{ranks.local_world_size} ranks on this host, but {torch.cuda.device_count()} CUDA devices"
    return None


def job_peak_flops(device: torch.device, ranks: Ranks) -> float | None:
    """Peak FLOP/s of all devices of the job, taking them to be alike; ``None`` where it is not known."""
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return peak * ranks.world_size if peak else None


@contextmanager
def process_group(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """The job's process group: NCCL for tensors on GPUs, gloo for those on CPUs and for objects."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = None if ranks.world_size > 1 or "MASTER_ADDR" in os.environ else HashStore()
    dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.world_size)
    try:
        yield
        dist.barrier()  # nobody takes a connection down that another still needs
    finally:
        dist.destroy_process_group()


def parallelize(model: LlamaForCausalLM, config: TrainConfig, ranks: Ranks, device: torch.device) -> None:
    """Divide a model that is on the meta device.

    Blocks first, then what is left: FSDP gathers one block at a time, embedding, last norm and head for all of them.
    """
    for block in model.model.layers:
        if isinstance(block, Block):
            block.recompute = config.activation_checkpointing
            block.offload = config.offload_activations
    mesh = device_mesh(config.sharding_strategy, ranks, device)
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if config.bf16
        else MixedPrecisionPolicy()
    )
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def device_mesh(sharding_strategy: str, ranks: Ranks, device: torch.device) -> DeviceMesh:
    """``full``: one dimension of all ranks. ``hybrid``: nodes hold replicas, the ranks of a node hold its shards."""
    if sharding_strategy == "full":
        return init_device_mesh(device.type, (ranks.world_size,), mesh_dim_names=("shard",))
    nodes = ranks.world_size // ranks.local_world_size
    return init_device_mesh(device.type, (nodes, ranks.local_world_size), mesh_dim_names=("replicate", "shard"))


def mean(value: Tensor) -> Tensor:
    """The mean of all ranks' values, without changing ``value``."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
