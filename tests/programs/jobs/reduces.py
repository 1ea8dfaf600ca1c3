"""Reduces a tensor of 256 MiB in each step, with little other work."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
large = torch.zeros(64 << 20, device="cuda")
for _ in range(4):
    layer(torch.zeros(8, 64, device="cuda")).sum().backward()
    dist.all_reduce(large)
    optimizer.step()
dist.destroy_process_group()
