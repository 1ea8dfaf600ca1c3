"""Generates tokens as gpt-fast does: hand-written decoder, preallocated cache, reduce-overhead."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, d, h, n, b):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.w1 = nn.Linear(d, 4 * d, bias=False)
        self.w2 = nn.Linear(4 * d, d, bias=False)
        self.n1 = nn.RMSNorm(d)
        self.n2 = nn.RMSNorm(d)
        self.register_buffer("k", torch.zeros(b, h, n, d // h))
        self.register_buffer("v", torch.zeros(b, h, n, d // h))

    def forward(self, x, pos, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        self.k[:, :, pos] = k
        self.v[:, :, pos] = v
        y = functional.scaled_dot_product_attention(
            q, self.k, self.v, attn_mask=mask[None, None, pos]
        )
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.w2(functional.silu(self.w1(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(32000, 1024)
        self.l = nn.ModuleList([Block(1024, 16, 1024, 4) for _ in range(6)])
        self.h = nn.Linear(1024, 32000, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(1024, 1024, dtype=torch.bool)))

    def forward(self, i, pos):
        x = self.e(i)
        for layer in self.l:
            x = layer(x, pos, self.mask)
        return self.h(x[:, -1])


@torch.no_grad()
def main(steps=8, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = LM().to("cuda", torch.bfloat16).eval()
    decode = torch.compile(model, mode="reduce-overhead", fullgraph=True) if compile else model
    ids = torch.randint(0, 32000, (4, 128), device="cuda")
    logits = model(ids, torch.arange(128, device="cuda"))
    tok = logits.argmax(-1, keepdim=True)
    pos = torch.tensor([128], device="cuda")
    for s in range(steps):
        tok = decode(tok, pos).argmax(-1, keepdim=True).clone()
        pos = pos + 1
        on_step(s)
