"""Times matrix products on a GPU, in kernels that PyTorch's compiler makes from its templates.

    python benchmarks/templates.py [FILE]

Writes one row for each product and each candidate of `max-autotune`: PyTorch's own kernel, and each
template with each tile. plimsoll's simulated GPU has a model for the time of a kernel from a
template. The model (src/plimsoll/torch/simulated/csrc/timing/products.cpp) is fitted to these rows.
"""

from __future__ import annotations

import csv
import itertools
import sys
from pathlib import Path
from typing import Any

SIZES = [
    (8192, 8192, 2048),
    (8192, 2048, 8192),
    (4096, 4096, 4096),
    (4096, 1000, 4096),
    (2048, 512, 1024),
    (1024, 1024, 4096),
    (16384, 768, 3072),
    (256, 4096, 4096),
    (64, 4096, 4096),
    (16, 4096, 11008),
]
"""The matrix products, as (m, n, k): an m x k matrix times a k x n matrix."""
TYPES = ("bfloat16", "float32")
COLUMNS = ("BLOCK_M", "BLOCK_K", "BLOCK_N", "num_stages", "num_warps")


def measure(writer: Any) -> None:
    """Tunes all products, and writes a row for each candidate."""
    import torch
    from torch._inductor import select_algorithm

    torch.set_float32_matmul_precision("high")
    found: list[list[Any]] = []
    product: list[Any] = []

    def save(timings: Any, *_: Any) -> None:
        for choice, milliseconds in timings.items():
            described = getattr(choice, "log_info", {})
            tile = str(described.get("tile_shape", "")).strip("()").split(",")
            row = dict(zip(COLUMNS, tile, strict=False))
            row |= {name: described.get(name, "") for name in COLUMNS[3:]}
            tiles = [str(row.get(name, "")).strip() for name in COLUMNS]
            found.append([*product, choice.name, *tiles, f"{milliseconds:.5f}"])

    select_algorithm.add_feedback_saver(save)
    for name, (m, n, k) in itertools.product(TYPES, SIZES):
        kind = getattr(torch, name)
        torch._dynamo.reset()
        found.clear()
        product[:] = [name, m, n, k]
        one = torch.randn(m, k, device="cuda", dtype=kind)
        other = torch.randn(k, n, device="cuda", dtype=kind)
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(one, other)
        writer.writerows(found)


def main() -> None:
    """Writes the rows to the named file."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "templates.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["dtype", "m", "n", "k", "kernel", *COLUMNS, "milliseconds"])
        measure(writer)


if __name__ == "__main__":
    main()
