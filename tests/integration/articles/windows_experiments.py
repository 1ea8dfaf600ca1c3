# The article's C++ program in PyTorch's words: cudaMalloc, then cudaMallocHost.
import sys

import torch

GIB = 1 << 30


def show(what):
    free, total = torch.cuda.mem_get_info()
    spilled = torch.cuda.memory_stats().get("shared_reserved_bytes.current", 0)
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    print(what, (total - free) // GIB, spilled // GIB, pinned // GIB)


device_gib, host_gib = map(int, sys.argv[1:])
try:
    tensor = torch.empty(device_gib * GIB, dtype=torch.uint8, device="cuda")
    show("allocated")
except torch.OutOfMemoryError as error:
    show("refused")
    print(error)
try:
    pinned = torch.empty(host_gib * GIB, dtype=torch.uint8, pin_memory=True)
    show("pinned")
except RuntimeError as error:
    print("not pinned:", str(error).splitlines()[0])
