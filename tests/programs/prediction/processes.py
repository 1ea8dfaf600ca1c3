"""Starts processes that use GPUs: python processes.py spawn|fork|fails|killed."""

import os
import signal
import sys
from multiprocessing import get_context

import torch

MIB = 1 << 20


def hold(rank: int, most: int) -> None:
    """Holds `most` MiB, and one more tensor of `rank` MiB."""
    held = [torch.zeros(MIB, dtype=torch.uint8, device="cuda") for _ in range(most)]
    held.append(torch.zeros(rank * MIB, dtype=torch.uint8, device="cuda"))


def end(_: int) -> None:
    """Uses a GPU, then kills itself."""
    torch.zeros(MIB, device="cuda")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Starts processes in the way that the argument names. For `spawn`, waits until they end."""
    kind = sys.argv[1]
    if kind == "spawn":
        torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
        torch.multiprocessing.spawn(hold, (30,), nprocs=2)
    elif kind == "fork":
        get_context("fork").Process(target=hold, args=(4, 40)).start()
    elif kind == "fails":
        get_context("fork").Process(target=hold, args=(20 << 10, 1)).start()
    else:
        get_context("fork").Process(target=end, args=(0,)).start()


if __name__ == "__main__":
    main()
