"""All-reduce among the ranks of a Slurm step, with the library that the trainer uses: NCCL on GPUs, else gloo.

Bus bandwidth is nccl-tests': the data's size over the time, times 2 (n - 1) / n for n ranks.
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from podwright_training.validation.steps import hostnames, write_result

LIMIT_S = 120
GPU_BYTES, GPU_REPEATS = 1 << 30, 20  # large enough for the bandwidth of any number of GPUs
CPU_BYTES, CPU_REPEATS = 16 << 20, 8
WARM_UP = 3
# aws-ofi-nccl names libfabric's provider, NCCL itself the network that it uses.
PROVIDER = re.compile(r"Selected [Pp]rovider is ([\w;-]+)")
NETWORK = re.compile(r"Using network (.+)")


def write_speed(folder: Path, *, name: str, port: int) -> None:
    """Join the other ranks of this step, measure, and leave rank 0's result."""
    import torch
    import torch.distributed as dist

    rank, ranks, local_rank = (int(os.environ[key]) for key in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
    head = hostnames(os.environ["SLURM_STEP_NODELIST"])[0]
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as logs:
        log = Path(logs) / "nccl"
        if on_gpu:
            torch.cuda.set_device(local_rank)
            _log_to(log)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"tcp://{head}:{port}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=LIMIT_S),
        )
        size_bytes, repeats = (GPU_BYTES, GPU_REPEATS) if on_gpu else (CPU_BYTES, CPU_REPEATS)
        data = torch.zeros(size_bytes // 4, device="cuda" if on_gpu else "cpu")
        seconds = [_timed(data, on_gpu=on_gpu) for _ in range(WARM_UP + repeats)][WARM_UP:]
        slowest = torch.tensor(seconds, dtype=torch.float64, device=data.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if rank == 0:
            factor = size_bytes * 2 * (ranks - 1) / ranks / 1e9
            speeds = [factor / value for value in slowest.tolist()]
            transport = transport_of(log.read_text(errors="replace")) if on_gpu and log.exists() else "gloo over TCP"
            write_result(folder, name, {"bus_gb_s": speeds, "transport": transport, "size_bytes": size_bytes})
        dist.barrier()
        dist.destroy_process_group()


def transport_of(log: str) -> str:
    """Return the network that NCCL's log names: libfabric's provider, such as ``efa``, or NCCL's own name."""
    provider, network = PROVIDER.search(log), NETWORK.search(log)
    return provider[1] if provider else network[1].strip() if network else "unknown"


def _log_to(path: Path) -> None:
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(path)}
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "^docker,lo,veth")  # The trainer's batch script sets the same.


def _timed(data: object, *, on_gpu: bool) -> float:
    """Return the seconds of one all-reduce that all ranks begin together."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter()
    dist.all_reduce(data)
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started
