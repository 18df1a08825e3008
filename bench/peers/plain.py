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

args = work.arguments()
dist.init_process_group("gloo")
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
        attn_implementation="sdpa",
    )
)
bf16 = args.dtype == "bf16"
if args.wrap == "fsdp2":
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(
    model.parameters(), lr=work.LEARNING_RATE, betas=work.BETAS, weight_decay=work.WEIGHT_DECAY, fused=True
)
sequences = work.packed(args.data, rank=int(os.environ["RANK"]), world_size=dist.get_world_size())
step_s = []
for _ in range(args.steps):
    begin = time.perf_counter()
    batch = torch.tensor([next(sequences) for _ in range(work.SEQUENCES_PER_RANK)])
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and args.wrap == "ddp"):
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
