"""Splits a sequence over the ranks. During attention, splits the heads instead (Ulysses)."""

import common
import torch
import torch.distributed as dist
from layers import Attention, Model, tokens_of
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def swap(x, to_heads):
    """Exchanges parts of `x` between the ranks, and returns this rank's new part.

    If `to_heads` is true, the new part has the whole sequence for some of the heads. Otherwise the
    new part has a piece of the sequence for all heads. `x` has the shape (batch, heads, sequence,
    size).
    """
    count = dist.get_world_size()
    given, taken = (1, 2) if to_heads else (2, 1)
    parts = torch.stack(x.chunk(count, given)).contiguous()
    got = all_to_all_single(torch.empty_like(parts), parts)
    return torch.cat(list(got.unbind()), taken)


class Swapped(Attention):
    def forward(self, x):
        batch, length, _ = x.shape
        parts = [
            swap(project(x).view(batch, length, -1, self.size).transpose(1, 2), True)
            for project in (self.query, self.key, self.value)
        ]
        mixed = swap(F.scaled_dot_product_attention(*parts, is_causal=True), False)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


device = common.begin(bound=True)
rank, count = dist.get_rank(), dist.get_world_size()
model = Model(layers=8)
for layer in model.layers:
    layer.attention.__class__ = Swapped
model = DistributedDataParallel(model.to(device), device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
torch.manual_seed(1)  # all ranks have the same sequence
for _ in range(3):
    tokens = tokens_of(1, 8192 + 1, device)
    own = tokens[:, :-1].chunk(count, 1)[rank]
    follow = tokens[:, 1:].chunk(count, 1)[rank]
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(own).flatten(0, 1).float(), follow.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
