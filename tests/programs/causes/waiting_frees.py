"""Frees tensors that another stream uses: after record_stream, or after waiting for the stream."""

import sys

import torch

side = torch.cuda.Stream()
weight = torch.randn(4096, 4096, device="cuda")
for _ in range(12):
    x = torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(side):
        for _ in range(20):
            y = weight @ x
    if "fault" in sys.argv:
        x.record_stream(side)
    else:
        torch.cuda.current_stream().wait_stream(side)
    del x
