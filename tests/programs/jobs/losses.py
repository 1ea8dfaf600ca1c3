"""Trains on the CPU; the ranks start with different parameters, and rank 0 prints the losses."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Makes six steps of AdamW."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.95))
    torch.manual_seed(100 + rank)
    for _ in range(6):
        x = torch.randn(8, 64)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(total.item())
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # at a normal end, a running thread of gloo would abort the process


main()
