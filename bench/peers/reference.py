"""AWS's FSDP test case, unedited: ``3.test_cases/pytorch/FSDP/src`` of awslabs/awsome-distributed-ai.

Its model becomes the one that all peers have, its data their batches, and its weights, which it leaves as ``to_empty``
gave them, are initialised: products of zeros would be faster. The rest is its own.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import work
from transformers import LlamaConfig

task, options = work.arguments("--reference")
sys.path.insert(0, options.reference)
sys.argv = [
    "train.py",
    f"--train_batch_size={task.sequences_per_rank}",
    f"--max_steps={task.steps}",
    f"--bf16={int(task.dtype == 'bf16')}",
    f"--lr={work.LEARNING_RATE}",
    f"--beta1={work.BETAS[0]}",
    f"--beta2={work.BETAS[1]}",
    f"--weight_decay={work.WEIGHT_DECAY}",
    f"--grad_clip={work.CLIP}",
    "--model_type=llama_v3",
    "--activation_checkpointing=0",
    "--epochs=1",
]
import train  # type: ignore[import-not-found]  # noqa: E402 - from the folder named just above

begins: list[float] = []


def _batches(*_: Any, split: str, **__: Any) -> Iterator[torch.Tensor]:
    """The batches; notes when each is asked for: the last step has no end."""
    if split == "train":
        batches = task.batches()
        for _ in range(task.steps):
            begins.append(time.perf_counter())
            yield torch.tensor([sequence[:-1] for sequence in next(batches)])


def _initialised(to_empty: Callable[..., Any]) -> Callable[..., Any]:
    def allocate(model: Any, **_: Any) -> Any:
        to_empty(model, device=torch.device(task.device))
        model.init_weights()
        return model

    return allocate


config = LlamaConfig(**{**task.model, "use_cache": False})
train.get_model_config = lambda _: config
train.create_streaming_dataloader = _batches
torch.nn.Module.to_empty = _initialised(torch.nn.Module.to_empty)
if task.device == "cpu":  # what it asks of a GPU
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda _: None
train.main(train.parse_args()[0])
work.report([end - begin for begin, end in itertools.pairwise(begins)])
