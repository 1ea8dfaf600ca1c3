"""The names of the categories of memory."""

from __future__ import annotations

CATEGORIES = (
    "parameters", "gradients", "optimizer_state", "activations", "unused_activations",
    "recomputed_activations", "inputs", "kv_cache", "collectives", "workspaces", "temporaries",
    "rounding", "other",
)  # fmt: skip
"""The categories of memory.

- `parameters`: parameters and buffers of modules.
- `activations`: made in a forward pass for the backward pass; without autograd, results of modules.
- `unused_activations`: saved by autograd for a backward pass that never came.
- `recomputed_activations`: activations that a checkpoint computes again.
- `inputs`: data from the host.
- `kv_cache`: buffers that persist over steps of inference.
- `collectives`: buffers of data that ranks exchange.
- `workspaces`: memory that libraries such as cuBLAS keep. PyTorch 2.15 frees a workspace after the
  matrix product; such a workspace counts as a temporary if only stacks are known.
- `temporaries`: freed within the pass that made them.
- `rounding`: the bytes of blocks beyond the requested sizes; never a block's own category.
- `other`: the rest.
"""

NUMBER = {name: number for number, name in enumerate(CATEGORIES)}

WORKSPACE_SIZES = (1 << 20, 8_519_680, 32 << 20)
"""Possible sizes of PyTorch's cuBLAS and cuBLASLt workspaces, by card and PyTorch version."""

_TITLES = {
    "kv_cache": "KV cache",
    "unused_activations": "activations that no backward uses",
    "collectives": "collectives' buffers",
}


def category_title(name: str) -> str:
    """Returns a category's name as reports show it."""
    return _TITLES.get(name, name.replace("_", " "))
