"""Recomputes activations; `optimizer.step` calls a closure that runs forward and backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(1024, 4096),
            nn.Linear(4096, 1024),
            nn.LayerNorm(1024),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


blocks = nn.ModuleList([Block() for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(blocks.parameters())


def closure() -> torch.Tensor:
    x = torch.randn(8, 1024, 1024).cuda()
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    loss = x.square().mean()
    loss.backward()
    return loss


for _ in range(3):
    optimizer.step(closure)
    optimizer.zero_grad()
