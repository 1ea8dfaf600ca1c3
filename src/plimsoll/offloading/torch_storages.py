"""Accesses PyTorch's storages where PyTorch's public functions are missing or slow."""

from __future__ import annotations

from typing import Any

import torch


def counted_part(tensor: Any) -> tuple[int, int] | None:
    """Returns the part of a tensor's storage that the tensor's version counter covers.

    The counter counts only changes to this part. The result is the part's offset and size, in
    elements, or None if the tensor was never changed.

    Views usually share their base's counter, which then counts all changes to the base. But each
    view by `unsafe_chunk` or `unsafe_split` has its own counter. So equal versions of two such
    views do not prove that the storage is unchanged.
    """
    if tensor._version == 0:
        return None
    base = tensor._base if tensor._is_view() else tensor
    return base.storage_offset(), base.numel()


def copy(to: Any, source: Any, stream: Any) -> None:
    """Queues a copy on a stream, faster than under `torch.cuda.stream`."""
    if torch._C._cuda_getDevice() != stream.device_index:
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
        return
    before = torch._C._cuda_getCurrentStream(stream.device_index)
    torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
    try:
        to.copy_(source, non_blocking=True)
    finally:
        torch._C._cuda_setStream(*before)


def as_bytes(storage: Any) -> Any:
    """Returns a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
