"""The memory that NCCL takes once in a process, and for two ranks, where there are two cards."""

from __future__ import annotations

from typing import Any

SIZE = 1 << 20
"""Bytes of the tensors that ranks exchange."""


def one_rank(device: int = 0) -> int:
    """The bytes of the card that a communicator of one rank takes, the process's first."""
    import torch
    import torch.distributed as dist

    torch.zeros(1, device="cuda")
    before = _taken(torch)
    _join(dist, torch, device, dist.HashStore(), 0, 1)
    taken = _taken(torch) - before
    dist.destroy_process_group()
    return taken


def two_ranks(rank: int, store_file: str) -> dict[str, int]:
    """The bytes of the card after each step of two ranks, of which this is one."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")
    before = _taken(torch)
    _join(dist, torch, rank, dist.FileStore(store_file, 2), rank, 2)
    found = {"communicator": _taken(torch) - before}
    x = torch.ones(SIZE // 4, device="cuda")
    dist.all_reduce(x)
    found["all_reduce"] = _taken(torch) - before
    dist.all_to_all_single(torch.empty_like(x), x)
    found["all_to_all"] = _taken(torch) - before
    dist.destroy_process_group()
    return found


def _join(dist: Any, torch: Any, device: int, store: Any, rank: int, count: int) -> None:
    dist.init_process_group(
        "nccl",
        store=store,
        rank=rank,
        world_size=count,
        device_id=torch.device("cuda", device),
    )


def _taken(torch: Any) -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())
