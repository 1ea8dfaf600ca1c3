"""A transformer trains with flash-attn's own functions, for equal and for different lengths.

Needs: flash-attn
Only simulated.
"""

import torch
from flash_attn import flash_attn_qkvpacked_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask):
        qkv = self.project(self.norm(x))
        batch, rows, _ = x.shape
        if mask is None:
            qkv = qkv.view(batch, rows, 3, self.heads, -1)
            mixed = flash_attn_qkvpacked_func(qkv, dropout_p=0.1, causal=True)
        else:
            flat, indices, starts, longest, _ = unpad_input(qkv, mask)
            q, k, v = flat.view(-1, 3, self.heads, qkv.shape[-1] // 3 // self.heads).unbind(1)
            mixed = flash_attn_varlen_func(q, k, v, starts, starts, longest, longest, causal=True)
            mixed = pad_input(mixed, indices, batch, rows)
        return x + self.out(mixed.reshape(x.shape))


torch.manual_seed(0)
blocks = nn.ModuleList([Block(1024, 16) for _ in range(8)]).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)
lengths = torch.tensor([2048, 1500, 700, 64], device="cuda")
padding = torch.arange(2048, device="cuda") < lengths[:, None]
for mask in (None, padding, None):
    x = torch.randn(4, 2048, 1024, device="cuda", dtype=torch.bfloat16)
    for block in blocks:
        x = block(x, mask)
    x.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("done: 3 steps")
