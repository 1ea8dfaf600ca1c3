"""Weights are compressed by singular values: each layer becomes two thin ones.

Needs: torch
"""

import torch
from torch import nn

torch.manual_seed(0)
widths = [(2048, 2048), (2048, 1024), (1024, 4096), (4096, 1024)]
model = nn.Sequential(*(nn.Linear(i, o) for i, o in widths)).to("cuda")


@torch.no_grad()
def compress(layer: nn.Linear, rank: int) -> nn.Sequential:
    left, values, right = torch.linalg.svd(layer.weight, full_matrices=False)
    thin = nn.Linear(layer.in_features, rank, bias=False)
    wide = nn.Linear(rank, layer.out_features)
    thin.weight = nn.Parameter(values[:rank, None] * right[:rank])
    wide.weight = nn.Parameter(left[:, :rank].contiguous())
    wide.bias = layer.bias
    return nn.Sequential(thin, wide)


small = nn.Sequential(*(compress(layer, 128) for layer in model))
x = torch.randn(16384, 2048, device="cuda")
with torch.no_grad():
    difference = (small(x) - model(x)).norm()
    basis, _ = torch.linalg.qr(small(x)[:4096])
    spectrum = torch.linalg.eigvalsh(basis.t() @ basis)
torch.cuda.synchronize()
print(tuple(spectrum.shape))
print("done: 4 layers compressed")
