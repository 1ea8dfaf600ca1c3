"""Measures one part of a card in this process: `python -m plimsoll.integrations.measuring.on_card`.

The process reads one JSON object from stdin. Its key "part" names the part; its other keys are the
arguments of the part's function. The last line that the process prints is the result, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from plimsoll.integrations.measuring import (
    attention_calls,
    contexts,
    convolutions,
    nccl_ranks,
    rates,
)


def card() -> dict[str, Any]:
    """Returns PyTorch's figures of the card; empty if PyTorch sees none."""
    import torch

    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.get_device_properties(0)
    major, minor = torch.cuda.get_device_capability()
    cudnn = torch.backends.cudnn.version() or 0
    return {
        "name": torch.cuda.get_device_name(0),
        "uuid": str(getattr(found, "uuid", "")),
        "next_uuid": _next_uuid(torch, found.name),
        "torch": torch.__version__,
        "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}",
        "total_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "compute_capability": f"{major}.{minor}",
        "l2_cache_bytes": found.L2_cache_size,
        "max_threads_per_multiprocessor": found.max_threads_per_multi_processor,
        "shared_memory_per_multiprocessor_bytes": found.shared_memory_per_multiprocessor,
        "shared_memory_per_block_optin_bytes": found.shared_memory_per_block_optin,
    }


def _next_uuid(torch: Any, name: str) -> str:
    """Returns the UUID of the second visible card if it is called `name`, else ""."""
    if torch.cuda.device_count() < 2:
        return ""
    found = torch.cuda.get_device_properties(1)
    return str(getattr(found, "uuid", "")) if found.name == name else ""


PARTS: dict[str, Callable[..., Any]] = {
    "card": card,
    "contexts": contexts.context_parts,
    "rates": rates.rates,
    "convolutions": convolutions.measure_convolutions,
    "searches": convolutions.measure_searches,
    "attention": attention_calls.attention,
    "one_rank": nccl_ranks.one_rank,
    "two_ranks": nccl_ranks.two_ranks,
}


def main() -> None:
    """Reads the request from stdin, measures the part, and prints the result."""
    given = json.load(sys.stdin)
    found = PARTS[given.pop("part")](**given)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
