"""Runs inference with a KV cache that is made once, for all tokens."""

import torch
from torch import nn


def make_cache() -> list[torch.Tensor]:
    return [torch.empty(4096, 512, device="cuda") for _ in range(4)]


def serve() -> None:
    cache = make_cache()
    head = nn.Linear(256, 1000, device="cuda")
    projections = nn.ModuleList([nn.Linear(256, 512) for _ in cache]).cuda()
    x = torch.randn(16, 256, device="cuda")
    for token in range(12):
        places = torch.arange(16, device="cuda") + 16 * token
        for layer, kept in zip(projections, cache, strict=True):
            kept.index_copy_(0, places, layer(x))
        head(x).argmax(-1)


with torch.no_grad():
    serve()
