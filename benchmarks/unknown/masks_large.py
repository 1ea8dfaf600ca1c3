"""Selects elements of large tensors with masks that come from random numbers."""

import torch

torch.manual_seed(3)
n = 200000000
for _step in range(3):
    u = torch.rand(n, device="cuda")
    z = torch.randn(n, device="cuda")
    a = z[u < 0.3]
    b = z[(z > 1.0) & (u > 0.5)]
    c = torch.nonzero(u > 0.9)
    d = z[torch.rand(n, device="cuda") < 0.25]
    r = torch.randint(0, 10, (n,), device="cuda")
    e = u[r == 3]
    s = a.sum() + b.sum() + c.sum() + d.sum() + e.sum()
    del a, b, c, d, e, r
