"""An engine whose workers are daemons, each a rank with a card: engine_workers.py RANKS.

A finalizer of the engine ends them. The ranks share buffers, as torch.distributed's symmetric
memory, and add up in them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

BUFFER_BYTES, PIECE_BYTES, WEIGHTS_BYTES = 63 << 20, 2 << 20, 96 << 20


def work(rank: int, ranks: int, orders: Any) -> None:
    """Load, add up once, and wait for the end."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    name = dist.group.WORLD.group_name
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    device = torch.device("cuda", rank)
    buffer = symmetric.empty(BUFFER_BYTES // 2, dtype=torch.bfloat16, device=device)
    # The signals beside it take a piece of their own where the buffer fills its pieces.
    assert free - torch.cuda.mem_get_info()[0] == BUFFER_BYTES + PIECE_BYTES // 2
    assert torch.cuda.memory_reserved() == reserved  # it is the driver's
    handle = symmetric.rendezvous(buffer, name)
    assert (handle.rank, handle.world_size, handle.multicast_ptr != 0) == (rank, ranks, True)
    weights = torch.empty(WEIGHTS_BYTES // ranks, dtype=torch.uint8, device=device)
    part = buffer[:1024]
    part.copy_(weights[:2048].view(torch.bfloat16))
    torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", name)
    assert torch.ops.symm_mem.one_shot_all_reduce(part, "sum", name).shape == part.shape
    orders.send("ready")
    orders.recv()


class Engine:
    """Starts workers, and ends them when it dies."""

    def __init__(self, ranks: int) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self.workers, self.pipes = [], []
        for rank in range(ranks):
            pipe, theirs = context.Pipe()
            worker = context.Process(target=work, args=(rank, ranks, theirs), daemon=True)
            worker.start()
            self.workers.append(worker)
            self.pipes.append(pipe)
        for pipe in self.pipes:
            assert pipe.recv() == "ready"
        weakref.finalize(self, end, self.workers, self.pipes)


def end(workers: list[Any], pipes: list[Any]) -> None:
    """Let each worker end by itself."""
    for pipe in pipes:
        pipe.send("end")
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    engine = Engine(int(sys.argv[1]))
