"""Measures NCCL's memory on a card: for one rank, and for two if there is a second card."""

from __future__ import annotations

import multiprocessing
import socket
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

_RANKS = 2
_PATIENCE = timedelta(seconds=60)
"""The longest time that a rank waits for the other rank."""
_ELEMENTS = 1 << 20


def one_rank() -> int:
    """Makes the first NCCL communicator of this process, with one rank.

    Returns the bytes of the card that the communicator takes.
    """
    import torch
    import torch.distributed as dist

    torch.zeros(1, device="cuda")
    before = _taken(torch)
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    taken = _taken(torch) - before
    dist.destroy_process_group()
    return taken


def two_ranks() -> dict[str, int]:
    """Runs a job with one rank on each of two cards.

    Returns the bytes that NCCL holds on the first card after it creates the communicator, after a
    collective, and after a send.
    """
    import torch  # noqa: F401  once, for both ranks

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ProcessPoolExecutor(_RANKS, multiprocessing.get_context("fork")) as pool:
        of_first, _ = pool.map(_steps, range(_RANKS), [port] * _RANKS)
    return of_first


def _steps(rank: int, port: int) -> dict[str, int]:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    x = torch.ones(_ELEMENTS, device="cuda")
    before = _taken(torch)
    dist.init_process_group(
        "nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=_RANKS, timeout=_PATIENCE,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    found = {"NCCL, 2 ranks, once it began": _taken(torch) - before}
    dist.all_reduce(x)
    found["NCCL, 2 ranks, and a collective"] = _taken(torch) - before
    other = 1 - rank
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, x.clone(), other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    found["NCCL, 2 ranks, and a send"] = _taken(torch) - before
    dist.barrier()
    dist.destroy_process_group()
    return found


def _taken(torch: Any) -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())
