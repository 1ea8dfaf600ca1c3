"""Runs experts in a loop, as early code for Mixtral did. nonzero selects each expert's tokens."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
D, H, E, K, T = (1024, 2816, 8, 2, 8192)


class Expert(nn.Module):  # type: ignore[misc]
    """An expert: two products and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(D, H, bias=False)
        self.b = nn.Linear(H, D, bias=False)

    def forward(self, x: Any) -> Any:
        """Returns the expert's output for the tokens `x`."""
        return self.b(functional.silu(self.a(x)))


class Experts(nn.Module):  # type: ignore[misc]
    """A layer in which each token goes to some of the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(E))

    def forward(self, x: Any) -> Any:
        """Returns the weighted sum of the experts' outputs."""
        w, i = torch.topk(functional.softmax(self.gate(x), -1), K, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = functional.one_hot(i, E).permute(2, 1, 0)
        for e in range(E):
            slot, tok = torch.where(mask[e])
            if tok.numel() == 0:
                continue
            out.index_add_(0, tok, self.experts[e](x[tok]) * w[tok, slot, None])
        return out


m = nn.Sequential(*[Experts() for _ in range(3)]).cuda()
opt = torch.optim.AdamW(m.parameters(), 0.0001)
for _step in range(4):
    x = torch.randn(T, D, device="cuda")
    loss = (m(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
