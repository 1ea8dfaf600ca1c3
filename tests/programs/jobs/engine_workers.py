"""Runs an engine whose workers are daemon processes, each a rank with its own card.

Run it as `engine_workers.py RANKS HOW`. The ranks all-reduce data in torch.distributed's symmetric
memory. The engine's finalizer ends the workers. HOW is "well" or "full". With "full", the last rank
requests more memory than its card has, catches the error and waits for its end. The all-reduce of
the other ranks fails, and the engine raises an error. plimsoll notes stages, such as loading
weights, only of engines that it knows. So the workers note the stages of this engine themselves.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import weakref
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

from plimsoll.torch.simulated.serving_use import ServingUse
from plimsoll.torch.simulated.start import running

BUFFER_BYTES, PIECE_BYTES, WEIGHTS_BYTES = 63 << 20, 2 << 20, 96 << 20
CACHE_BYTES, TOO_MUCH_BYTES = 1 << 30, 100 << 30


class Memory(ctypes.Structure):
    """NVML's struct nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64))


def ask_nvml(device: int) -> None:
    """Asks NVML how full a card is. NVML makes no CUDA context, so this takes no memory."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    handle, memory = ctypes.c_void_p(), Memory()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle)) == 0
    assert library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0


def work(rank: int, ranks: int, how: str, orders: Any) -> None:
    """Runs a rank: it takes memory, all-reduces, and waits until the engine tells it to end."""
    simulation = running()
    assert simulation is not None
    use = simulation.serving = ServingUse("an engine", stage="weights")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    ask_nvml(0)
    torch.cuda.set_device(rank)
    table = torch.empty(1024, pin_memory=True)
    assert table.is_pinned()
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    name = dist.group.WORLD.group_name
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    device = torch.device("cuda", rank)
    buffer = symmetric.empty(BUFFER_BYTES // 2, dtype=torch.bfloat16, device=device)
    # The driver allocates in pieces of PIECE_BYTES. The signal pad uses the free half of the
    # buffer's last piece. If the buffer filled its last piece, the pad would take another piece.
    assert free - torch.cuda.mem_get_info()[0] == BUFFER_BYTES + PIECE_BYTES // 2
    # the memory comes from the driver, not from PyTorch's allocator
    assert torch.cuda.memory_reserved() == reserved
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    assert symmetric.rendezvous(buffer, name).multicast_ptr == 0
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "0"
    handle = symmetric.rendezvous(buffer, name)
    assert (handle.rank, handle.world_size, handle.multicast_ptr != 0) == (rank, ranks, True)
    taken = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    mapped = [handle.get_buffer(each, [1024], torch.bfloat16, 512) for each in range(ranks)]
    assert taken == (torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved())
    assert mapped[rank].data_ptr() == buffer.data_ptr() + 1024
    assert len({each.data_ptr() for each in mapped}) == ranks
    mapped[rank].zero_()
    weights = torch.empty(WEIGHTS_BYTES // ranks, dtype=torch.uint8, device=device)
    part = buffer[:1024]
    part.copy_(weights[:2048].view(torch.bfloat16))
    torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", name)
    assert torch.ops.symm_mem.one_shot_all_reduce(part, "sum", name).shape == part.shape
    use.weights_bytes, use.stage = weights.nbytes, "kv_cache"
    try:
        size = TOO_MUCH_BYTES if how == "full" and rank == ranks - 1 else CACHE_BYTES
        cache = torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        use.failed_in = use.stage
        simulation.give_up("ran out of memory")
        orders.send("failed")
        orders.recv()
        return
    use.kv_cache_bytes, use.stage = cache.nbytes, "load"
    try:
        dist.all_reduce(weights[:16])
    except RuntimeError as error:
        if f"rank {ranks - 1} ran out of memory" not in str(error):
            raise
    orders.send("ready")
    orders.recv()


class Engine:
    """Starts workers, and ends them when it is finalized."""

    def __init__(self, ranks: int, how: str) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self.workers, self.pipes = [], []
        for rank in range(ranks):
            pipe, theirs = context.Pipe()
            worker = context.Process(target=work, args=(rank, ranks, how, theirs), daemon=True)
            worker.start()
            self.workers.append(worker)
            self.pipes.append(pipe)
        weakref.finalize(self, end, self.workers, self.pipes)
        if any(pipe.recv() != "ready" for pipe in self.pipes):
            raise RuntimeError("a worker failed")


def end(workers: list[Any], pipes: list[Any]) -> None:
    """Tells each worker to end, and waits for all."""
    for pipe in pipes:
        with suppress(OSError):  # the pipe of a worker that has already ended
            pipe.send("end")
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    engine = Engine(int(sys.argv[1]), sys.argv[2])
