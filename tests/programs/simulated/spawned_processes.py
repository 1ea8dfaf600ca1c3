"""Checks that spawned processes use simulated GPUs, and send CUDA tensors to the parent."""

from typing import Any

import torch

MIB = 1 << 20


def work(rank: int, queue: Any) -> None:
    """Holds a tensor, and sends a second one."""
    held = torch.ones(MIB, device="cuda")
    print(torch.cuda.get_device_name(held.device), torch.cuda.memory_allocated(), flush=True)
    queue.put(torch.full((2,), float(rank), device="cuda"))


if __name__ == "__main__":
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    held = torch.ones(MIB, device="cuda")
    torch.multiprocessing.spawn(work, (queue,), nprocs=2)
    got = [queue.get() for _ in range(2)]
    assert all(tensor.is_cuda for tensor in got)
    assert sorted(tensor.tolist() for tensor in got) == [[0, 0], [1, 1]]
