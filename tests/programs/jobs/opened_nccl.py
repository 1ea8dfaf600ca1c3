"""Runs RANKS processes that use NCCL without torch.distributed, as serving engines do."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
from typing import Any

import torch

FLOAT, SUM = 7, 0


class UniqueId(ctypes.Structure):
    """NCCL's struct ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


class Nccl:
    """The NCCL library, as programs declare it with ctypes."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libnccl.so.2")
        self.lib.ncclAllReduce.restype = ctypes.c_int

    def unique_id(self) -> UniqueId:
        """Returns a new unique id."""
        made = UniqueId()
        assert self.lib.ncclGetUniqueId(ctypes.byref(made)) == 0
        return made


def run(rank: int, ranks: int, unique: bytes) -> None:
    """Runs each NCCL operation, and checks the values that it gives."""
    torch.cuda.set_device(rank)
    nccl, comm = Nccl(), ctypes.c_void_p()
    lib = nccl.lib
    free = torch.cuda.mem_get_info()[0]
    made = UniqueId.from_buffer_copy(unique)
    assert lib.ncclCommInitRank(ctypes.byref(comm), ranks, made, rank) == 0
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def at(tensor: torch.Tensor) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())

    def filled(count: int, value: float) -> torch.Tensor:
        return torch.full((count,), value, device="cuda")

    mine, out = filled(4, rank + 1.0), filled(4, 0.0)
    assert lib.ncclAllReduce(at(mine), at(out), 4, FLOAT, SUM, comm, stream) == 0
    total = ranks * (ranks + 1) / 2
    assert out.tolist() == [total] * 4
    assert mine.tolist() == [rank + 1.0] * 4

    whole = filled(4 * ranks, 0.0)
    assert lib.ncclAllGather(at(mine), at(whole), 4, FLOAT, comm, stream) == 0
    assert whole[::4].tolist() == [1.0 + each for each in range(ranks)]

    assert lib.ncclReduceScatter(at(whole), at(out), 4, FLOAT, SUM, comm, stream) == 0
    assert out.tolist() == [ranks * (rank + 1.0)] * 4

    source = at(mine) if rank == 1 else ctypes.c_void_p()
    assert lib.ncclBroadcast(source, at(out), 4, FLOAT, 1, comm, stream) == 0
    assert out.tolist() == [2.0] * 4

    lib.ncclGroupStart()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    assert lib.ncclSend(at(mine), 4, FLOAT, after, comm, stream) == 0
    assert lib.ncclRecv(at(out), 4, FLOAT, before, comm, stream) == 0
    lib.ncclGroupEnd()
    assert out.tolist() == [before + 1.0] * 4

    side = torch.cuda.Stream()
    handle = ctypes.c_void_p(side.cuda_stream)
    assert lib.ncclReduce(at(mine), at(out), 4, FLOAT, SUM, 0, comm, handle) == 0
    side.synchronize()
    if rank == 0:
        assert out.tolist() == [total] * 4
    taken = free - torch.cuda.mem_get_info()[0]
    assert taken > 100 << 20
    assert lib.ncclCommDestroy(comm) == 0
    assert free - torch.cuda.mem_get_info()[0] < taken


def main() -> None:
    """Starts the ranks, as an engine starts its workers."""
    ranks = int(sys.argv[1])
    context: Any = multiprocessing.get_context("spawn")
    unique = bytes(Nccl().unique_id())
    workers = [context.Process(target=run, args=(rank, ranks, unique)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * ranks


if __name__ == "__main__":
    main()
