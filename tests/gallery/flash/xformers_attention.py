"""A vision transformer with xformers' attention and SwiGLU trains on packed images of two sizes.

Needs: xformers
Only simulated.
"""

import torch
import xformers.ops as xops
from torch import nn
from xformers.ops.fmha.attn_bias import BlockDiagonalMask


class Block(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = xops.SwiGLU(width, 2048)

    def forward(self, x, mask):
        qkv = self.project(self.norms[0](x)).view(*x.shape[:2], 3, self.heads, -1)
        q, k, v = xops.unbind(qkv, 2)
        mixed = xops.memory_efficient_attention(q, k, v, attn_bias=mask)
        x = x + self.out(mixed.flatten(2))
        return x + self.feed(self.norms[1](x))


torch.manual_seed(0)
blocks = nn.ModuleList([Block() for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
for _ in range(3):
    large = [torch.randn(1, 256, 768, device="cuda") for _ in range(16)]
    small = [torch.randn(1, 49, 768, device="cuda") for _ in range(64)]
    mask, x = BlockDiagonalMask.from_tensor_list([*large, *small])
    with torch.autocast("cuda", torch.bfloat16):
        for block in blocks:
            x = block(x, mask)
    loss = torch.stack([part.float().square().mean() for part in mask.split(x)]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done: 3 steps")
