"""The memory that NCCL takes of a card with the first communicator of a process."""

from __future__ import annotations

from typing import Any


def one_rank() -> int:
    """The bytes of the card that a communicator of one rank takes, the process's first."""
    import torch
    import torch.distributed as dist

    torch.zeros(1, device="cuda")
    before = _taken(torch)
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    taken = _taken(torch) - before
    dist.destroy_process_group()
    return taken


def _taken(torch: Any) -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())
