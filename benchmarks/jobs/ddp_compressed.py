"""Trains with DDP. The gradients are views of DDP's buckets. A hook sends the buckets as fp16."""

import common
import torch
from layers import Model, loss_of, tokens_of
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

device = common.begin(bound=True)
model = DistributedDataParallel(
    Model(layers=8).to(device), device_ids=[device], gradient_as_bucket_view=True, bucket_cap_mb=50
)
model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
common.own_data()
for _ in range(4):
    tokens = tokens_of(4, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
