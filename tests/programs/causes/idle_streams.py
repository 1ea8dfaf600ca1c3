"""Uses a new stream in each epoch, or one stream in all epochs."""

import sys

import torch

streams = [torch.cuda.Stream() for _ in range(6)]
for epoch in range(6):
    with torch.cuda.stream(streams[epoch if "fault" in sys.argv else 0]):
        x = torch.ones(8 << 20, device="cuda")
        y = x * 2
        torch.cuda.synchronize()
        del x, y
