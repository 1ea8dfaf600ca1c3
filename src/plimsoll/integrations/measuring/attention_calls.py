"""Measures the memory of attention calls, over the forward and the backward pass.

The memory of the operands does not count.
"""

from __future__ import annotations

import itertools
from typing import Any

_WIDTHS = (64, 80, 128, 192, 256)
_LENGTHS = (512, 2048)
_BATCH, _HEADS = 2, 8


def attention() -> dict[str, int]:
    """Measures several calls. Returns the bytes that each call takes, by the call's description."""
    import torch

    halves = ("bfloat16",) if torch.cuda.get_device_capability()[0] >= 8 else ()
    found = {}
    for width, length, name, causal in itertools.product(
        _WIDTHS, _LENGTHS, (*halves, "float16", "float32"), (False, True)
    ):
        words = f"attention {name} {_BATCH}x{_HEADS}x{length}x{width}{' causal' if causal else ''}"
        found[words] = _besides(torch, getattr(torch, name), length, width, causal)
    return found


def _besides(torch: Any, dtype: Any, length: int, width: int, causal: bool) -> int:
    sizes = (_BATCH, _HEADS, length, width)
    query = torch.zeros(sizes, device="cuda", dtype=dtype, requires_grad=True)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    attend = torch.nn.functional.scaled_dot_product_attention
    attend(query, query, query, is_causal=causal).sum().backward()
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)
