"""What PyTorch knows of storages, where its public functions do not tell or take too long."""

from __future__ import annotations

from typing import Any

import torch


def counted_part(tensor: Any) -> tuple[int, int] | None:
    """The part of its storage that PyTorch counts a tensor's versions for; None if never changed.

    Views have the counter of their base. Those of `unsafe_chunk` and `unsafe_split` have one each,
    so that equal numbers may stand for different contents of the storage.
    """
    if tensor._version == 0:
        return None
    base = tensor._base if tensor._is_view() else tensor
    return base.storage_offset(), base.numel()


def copy(to: Any, source: Any, stream: Any) -> None:
    """Queue a copy on a stream, as in `torch.cuda.stream`, which takes as long as the copy."""
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
    """A storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
