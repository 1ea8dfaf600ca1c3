"""Writes a snapshot of a function's allocations."""

import torch


def make() -> torch.Tensor:
    """Allocates 4 MiB."""
    return torch.zeros(1 << 20, device="cuda")


torch.cuda.memory._record_memory_history()
x = make()
del x
torch.cuda.memory._dump_snapshot("snapshot.pickle")
