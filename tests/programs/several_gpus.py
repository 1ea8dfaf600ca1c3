"""Runs a program on two GPUs in one process; the argument names the program.

The last line that each program prints is JSON: PyTorch's own counters of each GPU, as
`[max_memory_allocated, max_memory_reserved]`.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

MiB = 1 << 20


def second_gpu() -> None:
    """Takes little on the first GPU, and much on the second."""
    first = torch.empty(10 * MiB, dtype=torch.uint8, device="cuda:0")
    second = [torch.empty(60 * MiB, dtype=torch.uint8, device="cuda:1") for _ in range(2)]
    del first, second


def data_parallel() -> None:
    """Trains with DataParallel. GPU 0 holds the optimizer's state, all outputs, all gradients."""
    layers = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    model = nn.DataParallel(layers.cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def split_model() -> None:
    """Trains a model whose second half is on the second GPU, as `device_map` places it."""
    first, second = nn.Linear(512, 1024, device="cuda:0"), nn.Linear(1024, 4096, device="cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(3):
        hidden = first(torch.randn(64, 512, device="cuda:0"))
        second(hidden.to("cuda:1")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS = {
    "second_gpu": second_gpu,
    "data_parallel": data_parallel,
    "split_model": split_model,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    counters = [
        [torch.cuda.max_memory_allocated(gpu), torch.cuda.max_memory_reserved(gpu)]
        for gpu in range(2)
    ]
    print(json.dumps(counters))
