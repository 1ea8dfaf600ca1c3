"""Trains a bf16 attention layer: flex_attention with a sliding window and grouped queries."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def window(b, h, q, k):
    return (q >= k) & (q - k < 256)


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    attend = torch.compile(flex_attention) if compile else flex_attention
    wq = nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    wkv = nn.Linear(1024, 512, device="cuda", dtype=torch.bfloat16)
    opt = torch.optim.AdamW([*wq.parameters(), *wkv.parameters()])
    mask = create_block_mask(window, None, None, 2048, 2048, device="cuda")
    for s in range(steps):
        x = torch.randn(2, 2048, 1024, device="cuda", dtype=torch.bfloat16)
        q = wq(x).view(2, 2048, 16, 64).transpose(1, 2)
        k, v = wkv(x).view(2, 2048, 2, 4, 64).permute(2, 0, 3, 1, 4)
        y = attend(q, k, v, block_mask=mask, enable_gqa=True)
        y.float().square().mean().backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
