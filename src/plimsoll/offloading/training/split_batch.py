"""Splits a batch into parts whose gradients add up to those of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


def split_batch(parts: int, *batch: Any) -> Iterator[Any]:
    """Yields the parts of a batch in order, as views of the batch's rows.

    Divide the loss of each part by the number of parts. The gradients then add up to those of the
    mean loss over the batch. Layers that normalize by batch statistics use each part's statistics.

    >>> for x, y in plimsoll.split_batch(4, x, y):  # doctest: +SKIP
    ...     (loss_of(model(x), y) / 4).backward()

    Args:
        parts: The number of parts.
        batch: Tensors with the same number of rows, or mappings and sequences that contain such
            tensors. All other objects are repeated in each part.

    Yields:
        Yields a tuple with a part of each argument; for a single argument, the part itself.

    Raises:
        InputError: If the batch has no tensors, or its tensors differ in their numbers of rows.
            Also if the number of rows is not divisible by `parts`.
    """
    counts = {tensor.shape[0] for each in batch for tensor in _tensors(each)}
    if len(counts) != 1:
        raise InputError(f"a batch has tensors of one number of rows, not of {sorted(counts)}")
    (rows,) = counts
    if parts < 1 or rows % parts:
        raise InputError(f"{rows} rows do not divide into {parts} parts")
    size = rows // parts
    for begin in range(0, rows, size):
        values = tuple(_part(each, begin, size) for each in batch)
        yield values[0] if len(values) == 1 else values


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.dim():
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _part(value: Any, begin: int, size: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[begin : begin + size] if value.dim() else value
    if isinstance(value, Mapping):
        return {name: _part(each, begin, size) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_part(each, begin, size) for each in value]
    return value
