"""Trains a sharded layer, and saves its shards as a distributed checkpoint."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(512, 512, device="cuda")
fully_shard(layer)
layer(torch.zeros(8, 512, device="cuda")).sum().backward()
dcp.save(layer.state_dict(), checkpoint_id=sys.argv[1])
dist.destroy_process_group()
