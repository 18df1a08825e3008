"""Hugging Face's Trainer around the same model and data."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
import work
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

args = work.arguments()


class Packed(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """The stream of all ranks; the Trainer shares it out."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for sequence in work.packed(args.data, rank=0, world_size=1):
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
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=work.WIDTH,
        intermediate_size=work.FEED_FORWARD,
        num_hidden_layers=work.LAYERS,
        num_attention_heads=work.HEADS,
        num_key_value_heads=work.KEY_VALUE_HEADS,
        max_position_embeddings=work.SEQUENCE,
        tie_word_embeddings=False,
        use_cache=False,
    )
)
clock = Clock()
with tempfile.TemporaryDirectory() as output:
    settings = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=work.SEQUENCES_PER_RANK,
        max_steps=args.steps,
        learning_rate=work.LEARNING_RATE,
        adam_beta1=work.BETAS[0],
        adam_beta2=work.BETAS[1],
        weight_decay=work.WEIGHT_DECAY,
        max_grad_norm=work.CLIP,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=args.dtype == "bf16",
        optim="adamw_torch_fused",
        disable_tqdm=True,
    )
    Trainer(model=model, args=settings, train_dataset=Packed(), callbacks=[clock]).train()
work.report([end - begin for begin, end in zip(clock.ends, clock.ends[1:], strict=False)])
