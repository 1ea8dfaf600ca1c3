"""Runs two ranks that load a checkpoint: both onto the first card, or each onto its own card."""

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
distributed.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
path = Path("checkpoint.pt")
if local_rank == 0:
    torch.save(model.state_dict(), path)
distributed.barrier()
state = torch.load(path, map_location=None if "fault" in sys.argv else f"cuda:{local_rank}")
model.load_state_dict(state)
del state
distributed.barrier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(64, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
