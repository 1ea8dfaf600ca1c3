"""A storage that autograd saved, and the handles of its saved tensors.

The storage is on the card, in host memory, or in both. A handle describes a view to be made again.
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

# Backward functions that read only the shape of a saved tensor with this many dimensions.
_SHAPE_ONLY = {"NllLossBackward0": 2, "NllLoss2DBackward0": 4}
# an address that is not null: a null pointer means that memory is still to be allocated
_NOWHERE = 512


class Owner(Protocol):
    """The owner of a device's saved storages."""

    def unpack(self, handle: Handle) -> Any:
        """Make a saved tensor again, on the current stream."""

    def bury(self, serial: int, bytes_here: int, buffer: PinnedBuffer | None) -> None:
        """Note that a storage was deleted, in any thread, with its bytes on the card and buffer."""


class SavedStorage:
    """One storage that autograd saved: on the card, in host memory, or in both.

    Attributes:
        owner: The owner of the storage.
        streams: The streams for its copies.
        serial: Its number, counted over all steps of the device.
        size: The size in bytes.
        version: The version of the tensor's contents when it was saved.
        counted: The part that PyTorch counts versions of, see `counted_part`.
        is_computed: Whether it was made on the compute stream, so its memory may return there in
            stream order.
        storage: The storage on the card, or None.
        stream: The stream that the storage's memory belongs to.
        buffer: Its copy in host memory, or None.
        copied: The event after which `buffer` is filled, or None.
        arrived: The event after which `storage` is filled, until the compute stream has waited.
        views: The number of its saved tensors.
        used_in: The last backward pass that used it.
        is_discarded: Whether its values are gone: only its shape was needed.
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
        """Whether a tensor still has the values that were saved or are to be copied."""
        if self.version != tensor._version:
            return False
        return self.copied is None or self.counted == counted_part(tensor)

    def is_held_elsewhere(self) -> bool:
        """Whether the program also holds the storage, so that dropping it frees nothing."""
        return bool(torch._C._storage_Use_Count(self.storage._cdata) > 1)

    def copy_out(self) -> None:
        """Start its copy to host memory."""
        self.buffer = self.streams.copy_out(self.storage, self.size, self.stream)
        self.copied = self.buffer.busy

    def copy_back(self) -> None:
        """Start its copy to the card, to be used on the current stream.

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
        """Free its memory on the card, for use after the running copies."""
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
    """A saved tensor: a view of a storage."""

    __slots__ = ("dtype", "offset", "saved", "sequence", "shape", "strides")

    def __init__(self, saved: SavedStorage, tensor: Any) -> None:
        self.saved = saved
        # the number of the next node, which is not the saving one
        self.sequence = torch._C._autograd._get_sequence_nr()
        self.dtype = tensor.dtype
        self.shape = tensor.size()
        self.strides = tensor.stride()
        self.offset = tensor.storage_offset()
        saved.views += 1

    def tensor(self) -> Any:
        """Returns the view; its storage must be on the card."""
        storage = self.saved.storage
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.strides)

    def shape_alone(self) -> Any:
        """Returns a tensor of the same shape without memory, for readers of the shape only.

        An expanded scalar would not do: `contiguous` would copy it.
        """
        device = self.saved.streams.device
        size = math.prod(self.shape) * self.dtype.itemsize
        storage = torch._C._construct_storage_from_data_pointer(_NOWHERE, device, size)
        strides = torch.empty(self.shape, device="meta").stride()
        return torch.empty(0, dtype=self.dtype, device=device).set_(storage, 0, self.shape, strides)


def needs_shape_alone(handle: Handle) -> bool:
    """Whether the backward function that unpacks a tensor reads only its shape.

    A backward function that is itself differentiated may save the tensor and read it later. It must
    also have saved the tensor itself: a checkpoint around it unpacks its own inputs while it runs.
    """
    if not handle.dtype.is_floating_point or len(handle.shape) < 2 or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    return (
        node is not None
        and _SHAPE_ONLY.get(node.name()) == len(handle.shape)
        and node._sequence_nr() + 1 == handle.sequence
    )
