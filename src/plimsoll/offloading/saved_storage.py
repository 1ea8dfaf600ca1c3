"""One storage that autograd saved, and the handles of the tensors that were saved of it.

The storage is on the card, in host memory, or in both. A handle is a view to be made again.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Protocol

import torch

from plimsoll.offloading.torch_storages import counted_part

if TYPE_CHECKING:
    from plimsoll.offloading.copy_streams import CopyStreams
    from plimsoll.offloading.pinned import PinnedBuffer

# Backward functions that read only the shape of a saved tensor that has this many dimensions.
_SHAPE_ONLY = {"NllLossBackward0": 2, "NllLoss2DBackward0": 4}
_NOWHERE = 512  # an address: not null, which would say that memory is still to be allocated


class Owner(Protocol):
    """Who keeps the saved storages of a device."""

    def unpack(self, handle: Handle) -> Any:
        """Make a saved tensor again, on the current stream."""

    def bury(self, serial: int, bytes_here: int, buffer: PinnedBuffer | None) -> None:
        """A storage has died, in whatever thread: what it had on the card and in host memory."""


class SavedStorage:
    """One storage that autograd saved: on the card, in host memory, or in both.

    Attributes:
        owner: Who keeps it.
        streams: Where it is copied.
        serial: Counted over all steps of the device.
        size: In bytes.
        version: Of the tensor's contents when it was saved.
        counted: What PyTorch counts versions of, see `counted_part`.
        is_computed: Made on the compute stream, so memory may go back to it in stream order.
        storage: The storage on the card, or None.
        stream: The stream that the storage's memory belongs to.
        buffer: Its copy in host memory, or None.
        copied: The event after which `buffer` is filled, or None.
        arrived: The event after which `storage` is filled, until the compute stream has waited.
        views: How many tensors were saved of it.
        used_in: The backward pass that has asked for it last.
        is_discarded: Its values are nowhere: only its shape was needed.
    """

    __slots__ = (
        "__weakref__", "arrived", "buffer", "copied", "counted", "is_computed", "is_discarded",
        "owner", "serial", "size", "storage", "stream", "streams", "used_in", "version", "views",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, streams: CopyStreams, serial: int, tensor: Any, storage: Any
    ) -> None:
        self.owner = owner
        self.streams = streams
        self.serial = serial
        self.size: int = storage.nbytes()
        self.version: int = tensor._version
        self.counted = counted_part(tensor)
        self.is_computed: bool = not tensor.is_leaf
        self.storage = storage
        self.stream = streams.current()
        self.buffer: PinnedBuffer | None = None
        self.copied: Any = None
        self.arrived: Any = None
        self.views = 0
        self.used_in: int | None = None
        self.is_discarded = False

    def has_values_of(self, tensor: Any) -> bool:
        """Whether what was saved, or is still to be copied, is what a tensor of it has now."""
        if self.version != tensor._version:
            return False
        return self.copied is None or self.counted == counted_part(tensor)

    def is_held_elsewhere(self) -> bool:
        """Whether the program has the storage, too, so that dropping it frees nothing."""
        return bool(torch._C._storage_Use_Count(self.storage._cdata) > 1)

    def copy_out(self) -> None:
        """Start its copy to host memory."""
        self.buffer = self.streams.copy_out(self.storage, self.size, self.stream)
        self.copied = self.buffer.busy

    def copy_back(self) -> None:
        """Start its copy to the card, to be used on the current stream.

        Raises:
            torch.OutOfMemoryError: If the card has no room for it; nothing has changed then.
        """
        assert self.buffer is not None
        stream = self.streams.current()
        self.storage = self.streams.copy_back(self.buffer, self.size, self.copied, stream)
        self.arrived = self.buffer.busy
        self.stream = stream
        self.is_computed = True

    def release(self) -> None:
        """Free its memory on the card, for use after the copies that are under way."""
        for event in (self.copied, self.arrived):
            if event is not None:
                self.streams.wait(self.stream, event, by_host=not self.is_computed)
        self.arrived = None
        self.storage = None

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        had_storage = self.storage is not None
        if had_storage:
            self.release()
        self.owner.bury(self.serial, self.size if had_storage else 0, self.buffer)


class Handle:
    """A saved tensor: which view of which storage."""

    __slots__ = ("dtype", "offset", "saved", "sequence", "shape", "strides")

    def __init__(self, saved: SavedStorage, tensor: Any) -> None:
        self.saved = saved
        self.sequence = torch._C._autograd._get_sequence_nr()  # of the next node: not who saves it
        self.dtype = tensor.dtype
        self.shape = tensor.size()
        self.strides = tensor.stride()
        self.offset = tensor.storage_offset()
        saved.views += 1

    def tensor(self) -> Any:
        """The view; the storage is on the card."""
        storage = self.saved.storage
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.strides)

    def shape_alone(self) -> Any:
        """A tensor of the same shape without any memory, for who reads none.

        An expanded number would not do: who wants it contiguous would copy it.
        """
        device = self.saved.streams.device
        size = math.prod(self.shape) * self.dtype.itemsize
        storage = torch._C._construct_storage_from_data_pointer(_NOWHERE, device, size)
        strides = torch.empty(self.shape, device="meta").stride()
        return torch.empty(0, dtype=self.dtype, device=device).set_(storage, 0, self.shape, strides)


def needs_shape_alone(handle: Handle) -> bool:
    """Whether the backward function that asks for a tensor reads nothing but its shape.

    If it is to be differentiated itself, what it saves of the tensor may be read. And it must have
    saved the tensor itself: a checkpoint around it asks for its own inputs while it runs.
    """
    if not handle.dtype.is_floating_point or len(handle.shape) < 2 or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    return (
        node is not None
        and _SHAPE_ONLY.get(node.name()) == len(handle.shape)
        and node._sequence_nr() + 1 == handle.sequence
    )
