"""Holds the host memory that queued copies read: page-locked buffers, and the program's tensors.

While the program continues, a GPU can copy only from page-locked memory. A tensor in other memory
is first copied (*staged*) into a page-locked buffer. The buffers and tensors that a queued copy
reads are held until the copy is done, because no thread may write to them earlier.
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
    """A batch that is ready to be copied.

    Attributes:
        tree: The batch, with its host tensors in page-locked memory.
        buffer: The buffer that holds the staged tensors; None if no tensor had to be staged.
    """

    tree: Any
    buffer: PinnedBuffer | None


class HostMemory:
    """Holds the process's staging buffers and the sources of queued copies; thread-safe."""

    def __init__(self) -> None:
        self._buffers = PinnedBuffers()
        self._lock = threading.Lock()
        self._reading: list[tuple[Any, Any, PinnedBuffer | None]] = []
        self._dead: deque[Staged] = deque()

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of all page-locked buffers, in use or free."""
        return self._buffers.held_bytes

    def stage(self, tree: Any) -> Staged:
        """Makes a batch ready for its copies, without waiting for the GPU.

        Host tensors that are not page-locked yet are copied into a page-locked buffer.
        """
        self.release_read()
        while self._dead:
            self.give_back(self._dead.popleft())
        pageable = [t for t in tensors_of(tree) if t.device.type == "cpu" and needs_staging(t)]
        sizes = [-(-t.numel() * t.itemsize // _ALIGNMENT) * _ALIGNMENT for t in pageable]
        if not sum(sizes):
            return Staged(tree, None)
        buffer = self._buffers.take(sum(sizes))
        assert buffer.busy is None  # a buffer is given back only once its copies are done
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
        """Keeps the sources and the buffer of copies until a CUDA event has completed."""
        with self._lock:
            self._reading.append((event, sources, buffer))

    def give_back(self, staged: Staged) -> None:
        """Gives back the buffer of a batch that was never copied."""
        if staged.buffer is not None:
            self._buffers.give_back(staged.buffer)

    def bury(self, staged: Staged) -> None:
        """Makes the next `stage` give back the buffer of a batch that was never copied.

        Takes no lock, so that a finalizer may call it at any time.
        """
        self._dead.append(staged)

    def release_read(self) -> None:
        """Releases the sources whose copies are done, and gives back their buffers."""
        with self._lock:
            is_read = [event.query() for event, _, _ in self._reading]
            read = [entry for entry, done in zip(self._reading, is_read, strict=True) if done]
            self._reading = [e for e, done in zip(self._reading, is_read, strict=True) if not done]
        for _, _, buffer in read:
            if buffer is not None:
                self._buffers.give_back(buffer)


HOST_MEMORY = HostMemory()


def needs_staging(tensor: Any) -> bool:
    """Returns whether a host tensor must be staged so that its copy overlaps with the program."""
    return can_copy(tensor) and not (
        tensor.is_pinned() and tensor.stride() == dense_strides(tensor)
    )


def can_copy(tensor: Any) -> bool:
    """Returns whether a tensor is plain and strided, so that copying its bytes is enough."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def dense_strides(tensor: Any) -> tuple[int, ...]:
    """Returns the strides for a dense copy of a tensor.

    They are the tensor's own strides if its elements neither overlap nor have gaps.
    """
    strides: tuple[int, ...] = torch.empty_like(tensor, device="meta").stride()
    return strides


def like(tensor: Any, **options: Any) -> Any:
    """Allocates an uninitialized tensor for a copy of this one."""
    return torch.empty_strided(tensor.shape, dense_strides(tensor), dtype=tensor.dtype, **options)
