"""Shows steps that need less memory: a smaller batch, checkpoints, mixed precision."""

from contextlib import nullcontext

import torch
from torch.utils.checkpoint import checkpoint_sequential

MIB = 1 << 20


def step(way: str) -> None:
    """Trains one step. Prints its memory."""
    data = torch.ones(4096 if way == "smaller batch" else 8192, 1024, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.amp.autocast("cuda") if way == "mixed precision" else nullcontext():
        if way == "checkpoints":
            output = checkpoint_sequential(model, 4, data, use_reentrant=False)
        else:
            output = model(data)
    forward = torch.cuda.memory_allocated() - before
    print(f"{way}, type:", output.dtype)
    loss = output.float().mean()
    del output
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    del loss
    torch._C._cuda_clearCublasWorkspaces()
    print(f"{way}, forward:", forward // MIB)
    print(f"{way}, most:", (torch.cuda.max_memory_allocated() - before) // MIB)
    print(f"{way}, left:", torch.cuda.memory_allocated() - before)


model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
scaler.scale(torch.zeros((), device="cuda"))  # creates the scale factor, which stays allocated
for way in ("plain", "smaller batch", "checkpoints", "mixed precision"):
    step(way)
print("gradients:", {parameter.grad.dtype for parameter in model.parameters()})
