"""Runs workers that share a card: python card_workers.py KIND OWN THEIRS (in GiB).

KIND is one of these:

- KILL and TERM: the program holds OWN, and a worker holds THEIRS until this signal ends it;
- in_turn: each worker starts when the worker before it has ended;
- by_turns: two live workers take memory alternately, and wait for each other;
- apart: each of two workers sees only its own card;
- asks: the program holds OWN, and a worker asks how much is free.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import torch


def bytes_on_card(gibibytes: str) -> torch.Tensor:
    """Returns a tensor of this size."""
    return torch.zeros(int(gibibytes) << 30, dtype=torch.uint8, device="cuda")


def wait_for_a_signal(size: str, ready: Any) -> None:
    """Holds memory until a signal ends the process."""
    held = bytes_on_card(size)
    ready.set()
    time.sleep(600)
    del held


def take(size: str) -> None:
    """Takes memory, and ends."""
    bytes_on_card(size)


def take_by_turns(size: str, is_first: bool, barrier: Any) -> None:
    """Takes and frees memory. The worker with `is_first` goes first, and the other worker waits."""
    torch.cuda.synchronize()
    barrier.wait()
    if not is_first:
        barrier.wait()
    bytes_on_card(size)
    torch.cuda.empty_cache()
    if is_first:
        barrier.wait()
    barrier.wait()


def take_of(card: int, size: str, barrier: Any) -> None:
    """Takes memory on one of several cards."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(card)
    held = bytes_on_card(size)
    barrier.wait()
    del held


def ask(taken: int) -> None:
    """Checks that memory held by the parent is not reported as free, and cannot be allocated."""
    free, total = torch.cuda.mem_get_info()
    assert free < total - taken
    text = ""
    try:
        torch.zeros(free + (1 << 30), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        text = str(error)
    own = (total - free - taken) / (1 << 20)
    assert f"this process has {own:.2f} MiB memory in use" in text, text


def main() -> None:
    """Starts the workers that the arguments name."""
    kind, own, theirs = sys.argv[1:]
    context = multiprocessing.get_context("spawn")
    if kind in ("KILL", "TERM"):
        held = bytes_on_card(own)
        ready = context.Event()
        worker = context.Process(target=wait_for_a_signal, args=(theirs, ready))
        worker.start()
        while worker.is_alive() and not ready.wait(0.05):
            pass
        if worker.is_alive():
            assert worker.pid is not None
            os.kill(worker.pid, getattr(signal, f"SIG{kind}"))
        worker.join()
        del held
        return
    if kind == "asks":
        held = bytes_on_card(own)
        free, total = torch.cuda.mem_get_info()
        worker = context.Process(target=ask, args=(total - free,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        return
    barrier = context.Barrier(2)
    if kind == "by_turns":
        workers = [
            context.Process(target=take_by_turns, args=(own, first, barrier))
            for first in (True, False)
        ]
    elif kind == "apart":
        workers = [context.Process(target=take_of, args=(card, own, barrier)) for card in range(2)]
    else:
        workers = [context.Process(target=take, args=(size,)) for size in (own, theirs)]
    for worker in workers:
        worker.start()
        if kind == "in_turn":
            worker.join()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
