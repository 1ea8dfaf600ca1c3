"""Measures the memory of a process's CUDA context, part by part."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from plimsoll.engine.gpus.card_files import CONTEXT_PARTS, OF_TRAINING

_SMALL = 64


def _make(torch: Any) -> None:
    torch.empty(1, device="cuda")


def _launch_kernel(torch: Any) -> None:
    torch.zeros(1, device="cuda")


def _make_streams(torch: Any) -> None:
    torch.cuda.Stream()


def _multiply(torch: Any) -> None:
    x = torch.ones(_SMALL, _SMALL, device="cuda")
    torch.mm(x, x)


def _multiply_in_a_thread(torch: Any) -> None:
    _in_a_thread(_multiply, torch)


def _in_a_thread(work: Callable[[Any], None], torch: Any) -> None:
    thread = threading.Thread(target=work, args=(torch,))
    thread.start()
    thread.join()


def _convolve(torch: Any) -> None:
    layer = torch.nn.Conv2d(_SMALL, _SMALL, 3, padding=1).cuda()
    layer(torch.ones(8, _SMALL, 56, 56, device="cuda")).sum().backward()


def _solve(torch: Any) -> None:
    torch.linalg.eigh(torch.eye(_SMALL, device="cuda"))


def _solve_in_a_thread(torch: Any) -> None:
    _in_a_thread(_solve, torch)


def _transform(torch: Any) -> None:
    torch.fft.fft(torch.ones(4, 1000, device="cuda"))


_STEPS: dict[str, Callable[[Any], None]] = {
    "made": _make,
    "kernels": _launch_kernel,
    "streams": _make_streams,
    "blas": _multiply,
    "blas_handle": _multiply_in_a_thread,
    "stacks": _convolve,
    "solver": _solve,
    "solver_handle": _solve_in_a_thread,
    "fourier": _transform,
}
assert tuple(_STEPS) == ("made", *CONTEXT_PARTS)


def context_parts(before_bytes: int) -> dict[str, int]:
    """Loads the parts of a CUDA context one after another. Returns the bytes that each took.

    Args:
        before_bytes: The bytes of the card that were in use before this process used the card.
    """
    import torch

    found, last = {}, before_bytes
    for name, load in _STEPS.items():
        load(torch)
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        now = total - free - torch.cuda.memory_reserved()
        found[name] = max(0, now - last)
        last = max(now, last)
    return found


def context_bytes(parts: dict[str, int]) -> int:
    """Returns the memory that a CUDA context takes in a training step."""
    return sum(parts[name] for name in OF_TRAINING)
