"""A tensor-parallel feed-forward network of DTensors, on a mesh of one process.

Needs: torch
"""

import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "29511")
init_process_group("nccl", rank=0, world_size=1)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
mesh = init_device_mesh("cuda", (1,))
model = nn.Sequential(*(FeedForward(2048) for _ in range(4))).to("cuda")
for block in model:
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
for _ in range(3):
    x = torch.randn(8, 512, 2048, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
destroy_process_group()
print("done: 3 steps")
