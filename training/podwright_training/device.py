"""Choose the device of a rank: a CUDA GPU, a Neuron core, or the CPU; other modules use ``torch.accelerator``.

Neuron is TorchNeuron, which registers itself with PyTorch as device and as backend of process groups, both ``neuron``:
https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/about-pytorch-neuron.html. FSDP
casts to bf16 on every device alike: there is no autocast.
"""

from __future__ import annotations

import os
import resource
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d

from podwright_training import neuron
from podwright_training.hardware import neuron_peak_flops, peak_flops
from podwright_training.job_store import JobStore
from podwright_training.ranks import Ranks
from podwright_training.signed_objects import signed_objects

DEFAULT_TIMEOUT_S = 1800  # PyTorch's
NAMES = {"cuda": "CUDA", "neuron": "Neuron"}


def device_of(ranks: Ranks, wish: str) -> torch.device:
    """Return the device of this rank; ``wish`` is ``TrainConfig.device``."""
    kind = "cpu" if wish == "cpu" else _kind()
    return torch.device(kind) if kind == "cpu" else torch.device(kind, ranks.local_rank)


def device_problem(ranks: Ranks, wish: str) -> str | None:
    """Return why this host lacks the requested device for each of its ranks, or ``None``."""
    kind = _kind()
    if wish == "neuron" and kind != "neuron" and (problem := neuron.machine_problem()):
        return f"device = neuron: {problem}"
    if wish not in ("auto", "cpu", kind):
        return f"device = {wish}: this machine has no {NAMES[wish]} device that torch can use; use --device {kind}"
    if "cpu" not in (wish, kind) and torch.accelerator.device_count() < ranks.local_world_size:
        return f"{ranks.local_world_size} ranks on this host, but {torch.accelerator.device_count()} {kind} devices"
    return None


def slow_precision(ranks: Ranks, wish: str, precision: str) -> str | None:
    """Return why this processor is slow in ``precision``, or ``None``: without instructions for it, PyTorch loops."""
    if precision == "fp32" or device_of(ranks, wish).type != "cpu":
        return None
    mkldnn = torch.ops.mkldnn  # no public names
    supported = mkldnn._is_mkldnn_bf16_supported if precision == "bf16" else mkldnn._is_mkldnn_fp16_supported  # noqa: SLF001 - not public
    if supported():
        return None
    return f"this processor has no {precision} instructions, its matrix products are slow: use --precision fp32"


def backend_of(device: torch.device) -> str:
    """Return the backends of a process group: the device's own for its tensors, gloo for CPU tensors."""
    device_backend = dist.get_default_backend_for_device(device.type)
    return device_backend if device.type == "cpu" else f"cpu:gloo,{device.type}:{device_backend}"


def use_host_cores(ranks: Ranks) -> None:
    """Compute on this rank's share of the host's cores: torchrun gives each rank one, too few for an optimizer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // ranks.local_world_size))


def use(device: torch.device) -> None:
    """Make this device the process's default."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)


@contextmanager
def process_group(
    ranks: Ranks, device: torch.device, *, store: JobStore | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Iterator[None]:
    """Join the job's process group, in which this rank uses ``device`` and waits at most ``timeout_s`` for others.

    Ranks of several processes need a ``store``, whose secret also signs the objects that they exchange.
    """
    use(device)
    store = store or JobStore(ranks, secrets.token_bytes(), timeout_s=timeout_s)
    with signed_objects(store.secret):
        dist.init_process_group(
            backend_of(device),
            store=PrefixStore("default_pg", store.store),
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            yield
            dist.barrier()  # keep connections open until every rank is done
        finally:
            dist.destroy_process_group()


def limit_waits(timeout_s: float, *, besides: dist.ProcessGroup) -> None:
    """Set the longest wait of every process group but ``besides``; Neuron's are fixed."""
    for group in list(distributed_c10d._world.pg_map):  # noqa: SLF001 - there is no public list of groups
        if group is not besides:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Set timeout is now only supported")
                distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)  # noqa: SLF001 - as torchtitan does


def peak_memory_bytes(device: torch.device) -> tuple[int, int | None]:
    """Return the process's peak memory, allocated and reserved; on a CPU its resident set and ``None``."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None
    if device.type == "neuron":
        torch.accelerator.synchronize(device)  # its allocator counts finished work only
    return torch.accelerator.max_memory_allocated(device), torch.accelerator.max_memory_reserved(device)


def job_peak_flops(device: torch.device, ranks: Ranks) -> float | None:
    """Return the peak FLOP/s of all devices of the job, assuming they are equal; ``None`` if unknown."""
    peak = None
    if device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(device))
    elif device.type == "neuron":
        peak = neuron_peak_flops(neuron.device_name())
    return peak * ranks.world_size if peak else None


def _kind() -> str:
    """Return the type of this machine's accelerators, ``cpu`` if it has none."""
    neuron.load()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"
