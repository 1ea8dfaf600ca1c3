"""A storage that autograd saved, and the handles of its saved tensors.

The storage is on the card, in host memory, or in both. A handle describes a saved tensor as a view
of the storage, so that the tensor can be made again.
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

# Backward functions that read only the shape of one saved tensor. The number is that tensor's
# number of dimensions.
_SHAPE_ONLY = {"NllLossBackward0": 2, "NllLoss2DBackward0": 4}
# any address but null: PyTorch allocates memory for a storage whose pointer is null
_NOWHERE = 512


class Owner(Protocol):
    """The owner of a device's saved storages."""

    def unpack(self, handle: Handle) -> Any:
        """Makes a saved tensor again, for use on the current stream."""

    def bury(self, serial: int, bytes_here: int, buffer: PinnedBuffer | None) -> None:
        """Queues a deleted storage for removal from the tables; any thread may call this."""


class SavedStorage:
    """One storage that autograd saved: on the card, in host memory, or in both.

    Attributes:
        owner: The owner of the storage.
        streams: The streams for its copies.
        serial: Its serial number on the device, counted over all steps.
        size: The size in bytes.
        version: The saved tensor's version counter, as it was when autograd saved the tensor.
        counted: The part of the storage whose changes `version` counts, see `counted_part`.
        is_computed: Whether it was computed on the compute stream, so that its memory may be freed
            in stream order.
        storage: The storage on the card, or None.
        stream: The stream that the storage's memory belongs to.
        buffer: Its copy in host memory, or None.
        copied: The event at the end of the copy into `buffer`, or None.
        arrived: The event at the end of the copy into `storage`; None once the compute stream
            waits for the event.
        views: The number of its saved tensors.
        used_in: PyTorch's number of the last backward pass that used it; None if none did.
        is_discarded: Whether its values were dropped because only its shape was needed.
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
        """Returns whether a tensor still has the values that this storage, or its copy, holds."""
        if self.version != tensor._version:
            return False
        return self.copied is None or self.counted == counted_part(tensor)

    def is_held_elsewhere(self) -> bool:
        """Returns whether the program also holds the storage, so that dropping it frees nothing."""
        return bool(torch._C._storage_Use_Count(self.storage._cdata) > 1)

    def copy_out(self) -> None:
        """Starts the storage's copy to host memory."""
        self.buffer = self.streams.copy_out(self.storage, self.size, self.stream)
        self.copied = self.buffer.busy

    def copy_back(self) -> None:
        """Starts the storage's copy back to the card, for use on the current stream.

        Raises:
            torch.OutOfMemoryError: If the card has no room for it; the state is unchanged then.
        """
        assert self.buffer is not None
        stream = self.streams.current()
        self.storage = self.streams.copy_back(self.buffer, self.size, self.copied, stream)
        self.arrived = self.buffer.busy
        self.stream = stream
        self.is_computed = True

    def release(self) -> None:
        """Frees the storage's memory on the card.

        Running copies still use this memory. The storage's stream waits for them before it reuses
        the memory. If the storage was not computed on the compute stream, the host waits instead.
        """
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
    """Describes a saved tensor as a view of a storage."""

    __slots__ = ("dtype", "offset", "saved", "sequence", "shape", "strides")

    def __init__(self, saved: SavedStorage, tensor: Any) -> None:
        self.saved = saved
        # autograd's next sequence number; the node that saves the tensor has the one before it
        self.sequence = torch._C._autograd._get_sequence_nr()
        self.dtype = tensor.dtype
        self.shape = tensor.size()
        self.strides = tensor.stride()
        self.offset = tensor.storage_offset()
        saved.views += 1

    def tensor(self) -> Any:
        """Returns the saved tensor; its storage must be on the card."""
        storage = self.saved.storage
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.strides)

    def shape_alone(self) -> Any:
        """Returns a tensor of the same shape without memory, for code that reads only the shape.

        The tensor is contiguous. Otherwise a call of `contiguous` would copy it to full size.
        """
        device = self.saved.streams.device
        size = math.prod(self.shape) * self.dtype.itemsize
        storage = torch._C._construct_storage_from_data_pointer(_NOWHERE, device, size)
        strides = torch.empty(self.shape, device="meta").stride()
        return torch.empty(0, dtype=self.dtype, device=device).set_(storage, 0, self.shape, strides)


def needs_shape_alone(handle: Handle) -> bool:
    """Returns whether the backward function that unpacks a tensor reads only the tensor's shape.

    Returns False while autograd records gradients. The backward function may then save the tensor
    again, for a later backward pass that reads the values.

    Also returns False if the tensor was saved by an operation other than the one whose backward
    function runs. For example, when a backward function needs a recomputed tensor, the checkpoint
    unpacks its own inputs while that function runs.
    """
    if not handle.dtype.is_floating_point or len(handle.shape) < 2 or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    return (
        node is not None
        and _SHAPE_ONLY.get(node.name()) == len(handle.shape)
        and node._sequence_nr() + 1 == handle.sequence
    )
