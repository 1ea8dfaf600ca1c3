"""Trains a pipeline by 1F1B: a stage per rank, 8 microbatches, shapes inferred by PyTorch."""

import common
import torch
import torch.distributed as dist
from layers import Model, loss_of, tokens_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

device = common.begin()
rank, count = dist.get_rank(), dist.get_world_size()
layers = 16
model = Model(layers=layers)
first, last = rank * layers // count, (rank + 1) * layers // count
model.layers = model.layers[first:last]
if rank > 0:
    model.embedding = torch.nn.Identity()
if rank < count - 1:
    model.norm = model.head = torch.nn.Identity()
model.to(device)
stage = PipelineStage(model, rank, count, device)
schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss_of)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
torch.manual_seed(1)
for _ in range(3):
    tokens = tokens_of(16, 1024, device)
    losses = []
    inputs = (tokens,) if rank == 0 else ()
    with torch.autocast("cuda", torch.bfloat16):
        if rank == count - 1:
            schedule.step(*inputs, target=tokens, losses=losses)
        else:
            schedule.step(*inputs)
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
