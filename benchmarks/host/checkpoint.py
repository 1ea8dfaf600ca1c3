"""Reads a checkpoint of 640 MB to the host, then loads it into a model of the same size."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

device = sys.argv[1]
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(10)]).to(device)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "checkpoint.pt"
    torch.save(model.state_dict(), path)
    state = torch.load(path, map_location="cpu")
model.load_state_dict(state)
