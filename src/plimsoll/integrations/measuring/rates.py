"""Measures how fast a card copies, multiplies and starts kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

_COPIED_BYTES = 1 << 30
_BUS_BYTES = 256 << 20
_TIMES = 20
_LAUNCHES = 2000
_SIDE = 8192
_FP32_SIDE = 4096
REACHED_OF_BANDWIDTH = 0.896
"""The share of the data sheet's memory bandwidth that a copy reaches on an H100 and an H200."""
REACHED_OF_TENSOR_FLOPS = 0.80
"""The share of the data sheet's 16-bit tensor-core rate that `torch.mm` reaches (H100, H200)."""
REACHED_OF_FP32_FLOPS = 0.77
"""The share of the data sheet's fp32 rate that `torch.mm` reaches (H100, H200).

TF32 is off, so `torch.mm` uses no tensor cores.
"""


def rates() -> dict[str, float]:
    """Measures the bytes, operations and kernel launches per second."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    size = min(_COPIED_BYTES, free // 4) // 4 * 4
    source = torch.empty(size // 4, device="cuda")
    target = torch.empty_like(source)
    found = {"copy_bytes_per_s": 2 * size / _seconds(torch, partial(target.copy_, source))}
    host = torch.empty(_BUS_BYTES // 4, pin_memory=True)
    there = torch.empty(_BUS_BYTES // 4, device="cuda")
    copy = partial(there.copy_, host, non_blocking=True)
    found["bus_bytes_per_s"] = _BUS_BYTES / _seconds(torch, copy)
    half = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    found["fp32_flops"] = _flops(torch, torch.float32, _FP32_SIDE)
    found["tensor_flops"] = _flops(torch, half, _SIDE)
    found["launches_per_s"] = _launches(torch)
    return found


def _flops(torch: Any, dtype: Any, side: int) -> float:
    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.randn(side, side, device="cuda", dtype=dtype)
    out = torch.empty_like(x)
    return 2 * side**3 / _seconds(torch, lambda: torch.mm(x, x, out=out))


def _seconds(torch: Any, work: Callable[[], object]) -> float:
    """Returns the mean seconds that some work takes on the card, over several repetitions."""
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_TIMES):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / _TIMES


def _launches(torch: Any) -> float:
    """Returns the number of small kernels that the host launches per second."""
    x = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_LAUNCHES):
        x.add_(1)
    torch.cuda.synchronize()
    return _LAUNCHES / (time.perf_counter() - begin)
