"""Fit a line with DistributedDataParallel, 40 steps of a tenth of a second, and go on from the file if it is there."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 40
dist.init_process_group("gloo")
torch.manual_seed(0)
file, step = Path(sys.argv[1]), 0
model = torch.nn.Linear(7, 1)
if file.exists():
    step, state = torch.load(file)
    model.load_state_dict(state)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
while step < STEPS:
    step += 1
    inputs = torch.randn(8, 7)
    loss = (parallel(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 5 == 0:
            torch.save((step, model.state_dict()), f"{file}.new")
            Path(f"{file}.new").replace(file)
dist.destroy_process_group()
