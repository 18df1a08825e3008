"""Hugging Face's Trainer around the same model and data."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
import work
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

task, _ = work.arguments()


class Packed(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """The stream of all ranks; the Trainer shares it out."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for sequence in task.packed(rank=0, world_size=1):
            tokens = torch.tensor(sequence[:-1])
            yield {"input_ids": tokens, "labels": tokens}


class Clock(TrainerCallback):
    """The moment each step ends."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note it."""
        self.ends.append(time.perf_counter())


torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(**{**task.model, "use_cache": False}))
clock = Clock()
with tempfile.TemporaryDirectory() as output:
    settings = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=task.sequences_per_rank,
        max_steps=task.steps,
        learning_rate=work.LEARNING_RATE,
        adam_beta1=work.BETAS[0],
        adam_beta2=work.BETAS[1],
        weight_decay=work.WEIGHT_DECAY,
        max_grad_norm=work.CLIP,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=task.device == "cpu",
        bf16=task.dtype == "bf16",
        torch_compile=task.compile,
        optim="adamw_torch_fused",
        dataloader_num_workers=int(task.device == "cuda"),
        disable_tqdm=True,
    )
    Trainer(model=model, args=settings, train_dataset=Packed(), callbacks=[clock]).train()
work.report([end - begin for begin, end in zip(clock.ends, clock.ends[1:], strict=False)])
if torch.distributed.is_initialized():  # it leaves the group to the interpreter's end, where now and then a rank aborts
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
