"""Compiled flex_attention keeps no scores: a model trains on documents packed into one sequence.

Needs: triton
"""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

attend = torch.compile(flex_attention)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.joint = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask):
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.joint(self.norm(x)).chunk(3, dim=-1)
        )
        attended = attend(query, key, value, block_mask=mask)
        return x + self.out(attended.transpose(1, 2).flatten(-2))


length, width = 16384, 1024
documents = (torch.arange(length, device="cuda") // 3000).to(torch.int32)


def within_document(batch, head, query, key):
    return (query >= key) & (documents[query] == documents[key])


mask = create_block_mask(within_document, None, None, length, length, device="cuda")
blocks = nn.ModuleList(Block(width, 16) for _ in range(4)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)
for _ in range(3):
    x = torch.randn(1, length, width, device="cuda", dtype=torch.bfloat16)
    for block in blocks:
        x = block(x, mask)
    x.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("done: 3 steps")
