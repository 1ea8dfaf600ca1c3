"""Prints the memory that a preloaded library takes, frees and copies to the host.

Run it as `python preloaded.py LIBRARY`, where LIBRARY is preloaded.cpp and memory.cpp compiled.
"""

from __future__ import annotations

import ctypes
import json
import sys

import torch

MIB = 1 << 20


def free_mib() -> int:
    return int(torch.cuda.mem_get_info()[0]) // MIB


def main() -> None:
    lib = ctypes.CDLL(sys.argv[1])
    lib.sleeping_count.restype = ctypes.c_size_t
    lib.copy_to_host.restype = ctypes.c_void_p
    first = torch.zeros(1, device="cuda")
    free = {"start": free_mib()}
    outside = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    counts = [lib.sleeping_count()]
    lib.take_memory(True)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    default = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    lib.take_memory(False)
    counts.append(lib.sleeping_count())
    free["taken"] = free_mib()
    assert lib.sleeping_unmap(0) == 0
    free["asleep"] = free_mib()
    assert lib.sleeping_map(0) == 0
    free["awake"] = free_mib()
    size = ctypes.c_size_t(inside.nbytes)
    copy = lib.copy_to_host(ctypes.c_void_p(inside.data_ptr()), size)
    assert copy
    assert lib.free_copy(ctypes.c_void_p(copy)) == 0
    del inside, default, outside, pool
    torch.cuda.empty_cache()
    counts.append(lib.sleeping_count())
    free["end"] = free_mib()
    print(json.dumps({"free": free, "counts": counts, "first": first.numel()}))


main()
