"""Holds tensors and pinned memory until its standard input ends.

    python holder.py MIB [record]

It makes eight tensors of MIB MiB each and frees one. With `record`, PyTorch keeps their history.
"""

import sys

import torch

if "record" in sys.argv:
    torch.cuda.memory._record_memory_history()
tensors = [torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
del tensors[3]
pinned = torch.empty(5 << 20, dtype=torch.uint8, pin_memory=True)
print("ready", flush=True)
sys.stdin.read()
