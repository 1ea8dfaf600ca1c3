"""RMM's device buffers, and so those of RAPIDS, by a `rmm.mr.CallbackMemoryResource` for each GPU.

RMM says on which stream a buffer is made and on which it dies. On the default stream the stream
orders reuse; RMM's other streams are destroyed when their owner likes, so buffers there get memory
that no queued work uses any more, and an event on the stream where they die says when that is so
again.
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
    """The two functions of a `rmm.mr.CallbackMemoryResource`.

    Args:
        memories: The engines.
        device: The GPU, as CUDA counts.
    """

    def __init__(self, memories: Memories, device: int) -> None:
        self._memories = memories
        self._device = device

    def allocate(self, size: int, stream: Any) -> int:
        """An address of so many bytes for work on the stream; 0 for none.

        Raises:
            MemoryError: If there is no memory, with PyTorch's text.
        """
        if size == 0:
            return 0
        order = order_of(_number(stream), lasts=False)
        try:
            return self._memories.open(self._device).allocate(size, order.stream)
        except _core.OutOfMemory as error:
            raise MemoryError(str(error)) from None

    def deallocate(self, address: int, _size: int, stream: Any) -> None:
        """Give memory back, once what the stream has queued by now is done.

        It is called where C++ destroys buffers, so it raises nothing: what goes wrong is told on
        stderr, and the memory stays taken.
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
    """By CUDA's protocol for streams, which gives a version and the number."""
    _, number = stream.__cuda_stream__()
    return int(number)


def check() -> None:
    """Import RMM.

    Raises:
        InputError: If it is too old to say which stream it means.
    """
    rmm = importlib.import_module("rmm")
    stream = importlib.import_module("rmm.pylibrmm.stream")
    if not hasattr(stream.Stream, "__cuda_stream__"):
        raise InputError(
            f"RMM {rmm.__version__} is too old: its streams have no __cuda_stream__; update it"
        )


def serve(memories: Memories) -> None:
    """Let RMM's buffers of this process take their memory from these engines, from now on."""
    rmm = importlib.import_module("rmm")
    for device in range(count_gpus()):
        callbacks = RmmCallbacks(memories, device)
        resource = rmm.mr.CallbackMemoryResource(callbacks.allocate, callbacks.deallocate)
        rmm.mr.set_per_device_resource(device, resource)
