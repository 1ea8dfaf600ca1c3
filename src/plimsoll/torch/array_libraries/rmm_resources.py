"""Serves the device buffers of RMM, and so those of RAPIDS.

Each GPU gets a `rmm.mr.CallbackMemoryResource`. RMM passes the stream on which a buffer is made and
the stream on which it is destroyed. A buffer of the default stream gets memory that plimsoll keeps
for that stream. Once the buffer is destroyed, the next buffer of the stream can reuse the memory
immediately, because a stream does its work in order.

plimsoll keeps no memory for any other stream, because the program may destroy that stream at any
time. A buffer of such a stream gets idle memory, which no queued work uses. When the buffer is
destroyed, plimsoll records a CUDA event on the stream. The memory is idle again once the event has
completed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.engine.real_gpus import count_gpus
from plimsoll.torch.array_libraries.device_blocks import event_stream, order_of

if TYPE_CHECKING:
    from plimsoll.torch.array_libraries.device_blocks import Memories


class RmmCallbacks:
    """The two functions that a `rmm.mr.CallbackMemoryResource` calls.

    Args:
        memories: Gives the engine of each GPU. The engine allocates that GPU's memory.
        device: The GPU's number in CUDA.
    """

    def __init__(self, memories: Memories, device: int) -> None:
        self._memories = memories
        self._device = device

    def allocate(self, size: int, stream: Any) -> int:
        """Returns the address of `size` bytes for work on the stream; 0 if `size` is 0.

        Raises:
            MemoryError: If there is no memory, with the text of PyTorch's error.
        """
        if size == 0:
            return 0
        order = order_of(_number(stream), lasts=False)
        try:
            return self._memories.open(self._device).allocate(size, order.stream)
        except _core.OutOfMemory as error:
            raise MemoryError(str(error)) from None

    def deallocate(self, address: int, _size: int, stream: Any) -> None:
        """Frees memory, which is reused once all work queued on the stream so far is done.

        C++ calls this function while it destroys buffers, so it must not raise. It prints errors on
        stderr; the memory then stays allocated.
        """
        if address == 0:
            return
        try:
            memory = self._memories.open(self._device)
            memory.record_stream(address, event_stream(_number(stream)))
            memory.free(address)
        except Exception as error:
            print(
                f"plimsoll: memory of GPU {self._device} could not be freed: {error}",
                file=sys.stderr,
            )


def _number(stream: Any) -> int:
    """Returns a stream's number, the second item of `__cuda_stream__`; the first is a version."""
    _, number = stream.__cuda_stream__()
    return int(number)


def check() -> None:
    """Imports RMM and checks its version.

    Raises:
        InputError: If RMM is too old: its streams have no `__cuda_stream__`.
    """
    rmm = importlib.import_module("rmm")
    stream = importlib.import_module("rmm.pylibrmm.stream")
    if not hasattr(stream.Stream, "__cuda_stream__"):
        raise InputError(
            f"RMM {rmm.__version__} is too old: its streams have no __cuda_stream__; update it"
        )


def serve(memories: Memories) -> None:
    """Makes RMM take the memory of all new buffers from the engines in `memories`."""
    rmm = importlib.import_module("rmm")
    for device in range(count_gpus()):
        callbacks = RmmCallbacks(memories, device)
        resource = rmm.mr.CallbackMemoryResource(callbacks.allocate, callbacks.deallocate)
        rmm.mr.set_per_device_resource(device, resource)
