"""Prints how much memory torch_memory_saver frees when it pauses and takes when it resumes.

    python benchmarks/memory_saver.py torch                  on a GPU, with a MemPool
    LD_PRELOAD=torch_memory_saver_hook_mode_preload_cu13.abi3.so python benchmarks/memory_saver.py
    PLIMSOLL_LD_PRELOAD=... plimsoll run --simulate H200 benchmarks/memory_saver.py   without a GPU

Prints a row for each step: the card's free memory in MiB, and the change since the step before.
Needs torch_memory_saver. On a GPU, LD_LIBRARY_PATH must name the folder of libcudart.
"""

from __future__ import annotations

import sys

import torch
from torch_memory_saver import torch_memory_saver as saver

MIB = 1 << 20
ROUNDS = 3


class Table:
    """The card's free memory after each step."""

    def __init__(self) -> None:
        self._before = self._free()

    @staticmethod
    def _free() -> int:
        return int(torch.cuda.mem_get_info()[0]) // MIB

    def add(self, step: str) -> None:
        """Prints the row of a step, once the card has finished its work."""
        torch.cuda.synchronize()
        free = self._free()
        print(f"{step:16} {free:>8} {free - self._before:>+8}")
        self._before = free


def block(mib: int) -> torch.Tensor:
    """Returns a tensor of this size whose bytes are 7."""
    return torch.full((mib * MIB,), 7, dtype=torch.uint8, device="cuda")


def main() -> None:
    """Pauses and resumes tensors and, in the default mode, a CUDA graph."""
    if len(sys.argv) > 1:
        saver.hook_mode = sys.argv[1]
    torch.zeros(1, device="cuda")
    table = Table()
    table.add("start")
    outside = block(100)
    with saver.region("weights", enable_cpu_backup=True):
        weights = block(500)
    with saver.region("kv_cache"):
        cache = block(3072)
    table.add("made")
    for _ in range(ROUNDS):
        for tag in ("kv_cache", "weights"):
            saver.pause(tag)
            table.add(f"{tag} paused")
        for tag in ("weights", "kv_cache"):
            saver.resume(tag)
            table.add(f"{tag} resumed")
    assert weights.eq(7).all()
    if len(sys.argv) == 1:
        with saver.cuda_graph(torch.cuda.CUDAGraph(), tag="graph"):
            inside = block(200)
        table.add("graph captured")
        saver.pause("graph")
        table.add("graph paused")
        saver.resume("graph")
        table.add("graph resumed")
        del inside
    del outside, cache


if __name__ == "__main__":
    main()
