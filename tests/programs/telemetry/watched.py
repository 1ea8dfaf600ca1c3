"""Serves metrics, prints their port, and runs until its stdin ends.

    python watched.py sound|leak|fragments|full

The argument says how memory is used. With `sound`, memory use rises and falls as in training.
"""

import sys
import threading
import time

import torch

import plimsoll

MIB = 1 << 20


def blocks(count: int, mib: int) -> list[torch.Tensor]:
    """Returns `count` tensors of `mib` MiB each."""
    return [torch.empty(mib * MIB, dtype=torch.uint8, device="cuda") for _ in range(count)]


kind = sys.argv[1]
kept = blocks(4, 256)
if kind == "fragments":
    pieces = blocks(1000, 4)  # five tensors fill a segment
    kept += pieces[::5]
    del pieces
if kind == "full":
    free, total = torch.cuda.mem_get_info()
    kept += blocks(1, (free - total // 50) // MIB)
ended = threading.Event()


def wait_for_the_end() -> None:
    sys.stdin.read()
    ended.set()


threading.Thread(target=wait_for_the_end, daemon=True).start()
server = plimsoll.metrics(0)
print(server.port, flush=True)
while not ended.wait(0.05):
    if kind == "sound":
        activations = blocks(8, 128)
        time.sleep(0.05)
        del activations
    if kind == "leak":
        kept += blocks(1, 2)
server.close()
