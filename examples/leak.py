"""A training loop with a leak: each step keeps one tensor, among 10,000 healthy allocations.

The script keeps the outputs on the GPU, to look at them later. Run it
without a GPU, and have the recording explained:

    plimsoll run --simulate H100 examples/leak.py leak.pickle
    plimsoll explain leak.pickle
"""

from __future__ import annotations

import sys

import torch
from torch import nn

STEPS, LAYERS, WIDTH, BATCH = 100, 12, 256, 64


def main(path: str) -> None:
    """Train, and write the memory history to `path`."""
    torch.cuda.memory._record_memory_history()
    model = nn.Sequential(
        *(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(STEPS):
        data = torch.randn(BATCH, WIDTH, device="cuda")
        output = model(data)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        kept.append(output.detach().clone())  # the leak: 64 KiB more each step
    torch.cuda.memory._dump_snapshot(path)
    print(f"{len(kept)} outputs are kept; the history is in {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "leak.pickle")
