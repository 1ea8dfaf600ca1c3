"""The host's side of copies: page-locked memory, and the sources of queued copies.

A GPU copies on its own only from page-locked memory, while the program continues. A tensor in other
memory is written into a buffer first. The sources of a queued copy, buffers and the program's own
tensors, are held until the copy is done: no thread may write to them before.
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
    """A batch whose copies may be queued.

    Attributes:
        tree: The batch, with its host tensors in page-locked memory.
        buffer: The buffer of some of these tensors, or None.
    """

    tree: Any
    buffer: PinnedBuffer | None


class HostMemory:
    """Buffers and sources of queued copies, one for the process. Any thread may use it."""

    def __init__(self) -> None:
        self._buffers = PinnedBuffers()
        self._lock = threading.Lock()
        self._reading: list[tuple[Any, Any, PinnedBuffer | None]] = []
        self._dead: deque[Staged] = deque()

    @property
    def held_bytes(self) -> int:
        """Returns the page-locked memory of all buffers, used or not."""
        return self._buffers.held_bytes

    def stage(self, tree: Any) -> Staged:
        """Copy tensors that are not page-locked into a buffer; the host waits for nothing else."""
        self.release_read()
        while self._dead:
            self.give_back(self._dead.popleft())
        pageable = [t for t in tensors_of(tree) if t.device.type == "cpu" and needs_staging(t)]
        sizes = [-(-t.numel() * t.itemsize // _ALIGNMENT) * _ALIGNMENT for t in pageable]
        if not sum(sizes):
            return Staged(tree, None)
        buffer = self._buffers.take(sum(sizes))
        assert buffer.busy is None  # a returned buffer's copies are over
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
        """Keep the sources of copies until an event."""
        with self._lock:
            self._reading.append((event, sources, buffer))

    def give_back(self, staged: Staged) -> None:
        """Return the buffer of a batch that was never copied."""
        if staged.buffer is not None:
            self._buffers.give_back(staged.buffer)

    def bury(self, staged: Staged) -> None:
        """Return the buffer from a finalizer, which may interrupt any method here."""
        self._dead.append(staged)

    def release_read(self) -> None:
        """Release sources whose copies are done."""
        with self._lock:
            is_read = [event.query() for event, _, _ in self._reading]
            read = [entry for entry, done in zip(self._reading, is_read, strict=True) if done]
            self._reading = [e for e, done in zip(self._reading, is_read, strict=True) if not done]
        for _, _, buffer in read:
            if buffer is not None:
                self._buffers.give_back(buffer)


HOST_MEMORY = HostMemory()


def needs_staging(tensor: Any) -> bool:
    """Whether a host tensor must be staged, so that its copy can run beside the program."""
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
    """Returns a copy's strides: the tensor's own, if it neither overlaps nor has gaps."""
    strides: tuple[int, ...] = torch.empty_like(tensor, device="meta").stride()
    return strides


def like(tensor: Any, **options: Any) -> Any:
    """Allocates memory for a copy."""
    return torch.empty_strided(tensor.shape, dense_strides(tensor), dtype=tensor.dtype, **options)
