"""Trains as one process of a job: python one_of_many.py BACKEND (ddp|ddp_views|fsdp).

It prints JSON. "held" is the allocated bytes after the last backward pass, without the model.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group(sys.argv[1])
norm = nn.SyncBatchNorm(8).cuda()
norm(torch.randn(4, 8, 9, device="cuda")).sum().backward()
assert norm.weight.grad.shape == (8,)
del norm
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
before = torch.cuda.memory_allocated()
if sys.argv[2] == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
elif sys.argv[2] == "ddp_views":
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
else:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(32, 1024, device="cuda")).square().mean().backward()
    held = torch.cuda.memory_allocated() - before
    optimizer.step()
    optimizer.zero_grad()
work = dist.all_reduce(torch.ones(3, device="cuda"), async_op=True)
work.wait()
gathered = [torch.empty(3, device="cuda") for _ in range(dist.get_world_size())]
dist.all_gather(gathered, torch.ones(3, device="cuda"))
dist.barrier()
group = dist.new_group(range(dist.get_world_size()), backend="nccl")
dist.all_reduce(torch.ones(3, device="cuda"), group=group)
print(json.dumps({"world": dist.get_world_size(), "rank": dist.get_rank(), "held": held}))
dist.destroy_process_group()
