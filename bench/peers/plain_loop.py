"""The plain loop: Hugging Face's Llama, DDP or FSDP2, fused AdamW, no trainer around it."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
import work
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

task, options = work.arguments("--wrap")
device = torch.device(task.device, int(os.environ["LOCAL_RANK"]) if task.device == "cuda" else None)
if task.device == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if task.device == "cuda" else "gloo")
torch.manual_seed(0)
with device:
    model = LlamaForCausalLM(LlamaConfig(**{**task.model, "use_cache": False}, attn_implementation="sdpa"))
if task.compile:
    for layer in model.model.layers:
        layer.compile()
bf16 = task.dtype == "bf16"
if options.wrap == "fsdp2":
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(
    model.parameters(), lr=work.LEARNING_RATE, betas=work.BETAS, weight_decay=work.WEIGHT_DECAY, fused=True
)
batches = task.batches()
step_s = []
for _ in range(task.steps):
    begin = time.perf_counter()
    batch = torch.tensor(next(batches), device=device)
    with torch.autocast(task.device, torch.bfloat16, enabled=bf16 and options.wrap == "ddp"):
        logits = model(input_ids=batch[:, :-1]).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), work.CLIP)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    step_s.append(time.perf_counter() - begin)
work.report(step_s)
dist.destroy_process_group()
