"""Takes host memory in one way: python host_memory.py KIND MIB."""

import os
import sys
import time

import numpy as np
import torch

kind, size = sys.argv[1], int(sys.argv[2]) << 20
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())


def step() -> None:
    model(torch.randn(16, 1024, device="cuda")).sum().backward()
    optimizer.step()


class Zeros(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(size // 4 // 2, dtype=torch.uint8)


step()
held = None
if kind == "numpy":
    held = np.ones(size, dtype=np.uint8)
elif kind == "for a moment":
    np.ones(size, dtype=np.uint8).sum()
elif kind == "tensor":
    held = torch.randn(size // 4)
elif kind == "pinned":
    held = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    held[: size // 2] = 1  # plimsoll counted these bytes already, as page-locked
elif kind == "fork":
    if (process := os.fork()) == 0:
        held = np.ones(size, dtype=np.uint8)
        time.sleep(1)
        os._exit(0)
    os.waitpid(process, 0)
elif kind == "loader":  # each of two workers prefetches two batches of two samples
    for _batch in torch.utils.data.DataLoader(Zeros(), batch_size=2, num_workers=2):
        time.sleep(0.1)
elif kind == "placed":
    import plimsoll

    optimizer = torch.optim.Adam([torch.zeros(size // 8, device="cuda", requires_grad=True)])
    plimsoll.place_optimizer(optimizer)
    optimizer.param_groups[0]["params"][0].sum().backward()
    optimizer.step()
