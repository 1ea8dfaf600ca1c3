"""Copies whole trees of tensors into page-locked memory."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.utils import _pytree as pytree

Tree = TypeVar("Tree")


def pin(tree: Tree) -> Tree:
    """Copies a tree's host tensors into page-locked memory, from which GPUs copy at full speed.

    Page-locked memory counts as *shared memory*: host memory that GPUs reach over the bus (see
    docs/tiers.md). plimsoll's allocator keeps freed page-locked memory in a pool, so only the first
    use is slow. Tensors that are on a GPU or already page-locked are returned unchanged. So are
    objects that are not tensors.

    >>> batch = plimsoll.pin(batch)  # doctest: +SKIP

    Args:
        tree: Tensors in lists, tuples, dictionaries and other containers of `torch.utils._pytree`.
    """

    def pin_one(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu" or leaf.is_pinned():
            return leaf
        return leaf.pin_memory()

    pinned: Tree = pytree.tree_map(pin_one, tree)
    return pinned
