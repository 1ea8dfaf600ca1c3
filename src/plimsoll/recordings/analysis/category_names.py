"""The names of the categories of memory."""

from __future__ import annotations

CATEGORIES = (
    "parameters", "gradients", "optimizer_state", "activations", "unused_activations",
    "recomputed_activations", "inputs", "kv_cache", "collectives", "workspaces", "temporaries",
    "rounding", "other",
)  # fmt: skip
"""The categories of memory.

`parameters` are those of modules, with their buffers. `activations` are made in a forward pass for
the backward pass, and without autograd they are the results of modules; `unused_activations` were
saved by autograd for a backward pass that never came; `recomputed_activations` a checkpoint
computes again. `inputs` came from the host. `kv_cache` persists over steps of inference.
`collectives` are buffers of data that ranks exchange. `workspaces` are kept by libraries such as
cuBLAS; those of PyTorch 2.15 die with the product, and count as temporaries if only stacks are
known. `temporaries` die within the pass that made them. `rounding` is the size of blocks beyond
their requests, and never a block's own category. `other` is the rest.
"""

NUMBER = {name: number for number, name in enumerate(CATEGORIES)}

WORKSPACE_SIZES = (1 << 20, 8_519_680, 32 << 20)
"""Bytes that PyTorch allocates and keeps for cuBLAS and cuBLASLt, by card and version."""

_TITLES = {
    "kv_cache": "KV cache",
    "unused_activations": "activations that no backward uses",
    "collectives": "collectives' buffers",
}


def category_title(name: str) -> str:
    """Returns a category's name for people."""
    return _TITLES.get(name, name.replace("_", " "))
