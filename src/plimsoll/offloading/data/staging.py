"""The host's side of copies: page-locked memory, and what queued copies still read.

Only from page-locked memory does a GPU copy by itself while the program goes on. A tensor that is
not in it is written into a buffer first. Whatever a queued copy reads, the buffers as well as the
program's own tensors, is held until the copy is done: nobody may write there before.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from plimsoll.offloading.data.tree import map_tensors, tensors_of
from plimsoll.offloading.pinned import PinnedBuffer, PinnedBuffers

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALIGNMENT = 512


@dataclass(frozen=True)
class Staged:
    """A batch that copies may be queued of.

    Attributes:
        tree: It, its host tensors in page-locked memory.
        buffer: Of which some of them are, or None.
    """

    tree: Any
    buffer: PinnedBuffer | None


class HostMemory:
    """Buffers, and what is being read; one for the process. Any thread may use it."""

    def __init__(self) -> None:
        self._buffers = PinnedBuffers()
        self._lock = threading.Lock()
        self._reading: list[tuple[Any, Any, PinnedBuffer | None]] = []
        self._dead: deque[Staged] = deque()

    @property
    def held_bytes(self) -> int:
        """Page-locked memory of all buffers, used or not."""
        return self._buffers.held_bytes

    def stage(self, tree: Any) -> Staged:
        """Write what is not page-locked into a buffer; the host waits for nothing else."""
        self.release_read()
        while self._dead:
            self.give_back(self._dead.popleft())
        pageable = [t for t in tensors_of(tree) if t.device.type == "cpu" and needs_staging(t)]
        sizes = [-(-t.numel() * t.itemsize // _ALIGNMENT) * _ALIGNMENT for t in pageable]
        if not sum(sizes):
            return Staged(tree, None)
        buffer = self._buffers.take(sum(sizes))
        assert buffer.busy is None  # it came back after its copies
        storage = buffer.bytes.untyped_storage()
        start = buffer.bytes.storage_offset()
        places = dict(zip(map(id, pageable), accumulate(sizes, initial=start), strict=False))

        def write(tensor: Any) -> Any:
            if id(tensor) not in places:
                return tensor
            first = places[id(tensor)] // tensor.itemsize
            there = torch.empty(0, dtype=tensor.dtype)
            there.set_(storage, first, tensor.shape, dense_strides(tensor))
            return there.copy_(tensor.detach()).requires_grad_(tensor.requires_grad)

        try:
            with torch.inference_mode(mode=False):
                return Staged(map_tensors(write, tree), buffer)
        except BaseException:
            self._buffers.give_back(buffer)
            raise

    def hold(self, event: Any, sources: Iterable[Any], buffer: PinnedBuffer | None) -> None:
        """Keep what is being read until an event."""
        with self._lock:
            self._reading.append((event, sources, buffer))

    def give_back(self, staged: Staged) -> None:
        """A batch that was never copied."""
        if staged.buffer is not None:
            self._buffers.give_back(staged.buffer)

    def bury(self, staged: Staged) -> None:
        """Give it back from a finalizer, which may run in the midst of anything here."""
        self._dead.append(staged)

    def release_read(self) -> None:
        """Let go of what was read."""
        with self._lock:
            is_read = [event.query() for event, _, _ in self._reading]
            read = [entry for entry, done in zip(self._reading, is_read, strict=True) if done]
            self._reading = [e for e, done in zip(self._reading, is_read, strict=True) if not done]
        for _, _, buffer in read:
            if buffer is not None:
                self._buffers.give_back(buffer)


HOST_MEMORY = HostMemory()


def needs_staging(tensor: Any) -> bool:
    """Whether a host tensor cannot be copied as it is while the program goes on."""
    return can_copy(tensor) and not (
        tensor.is_pinned() and tensor.stride() == dense_strides(tensor)
    )


def can_copy(tensor: Any) -> bool:
    """Whether a tensor is plain memory."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def dense_strides(tensor: Any) -> tuple[int, ...]:
    """Of a copy: the same where nothing overlaps and nothing is left out."""
    strides: tuple[int, ...] = torch.empty_like(tensor, device="meta").stride()
    return strides


def like(tensor: Any, **options: Any) -> Any:
    """Memory for a copy."""
    return torch.empty_strided(tensor.shape, dense_strides(tensor), dtype=tensor.dtype, **options)
