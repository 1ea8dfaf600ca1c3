"""Moves autograd's saved tensors so that one device stays within a budget.

This file also detects where a training step begins.

When memory is needed, plimsoll makes the compute stream wait for the copy of a storage to host
memory. plimsoll then frees the storage immediately, even if the copy is still running. The next
request gets that memory in stream order, so the sequence of allocations does not depend on the
speed of copies.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from plimsoll.offloading.copy_streams import CopyStreams, Movements
from plimsoll.offloading.pager import Pager
from plimsoll.offloading.plan import Plan
from plimsoll.offloading.program_memory import ProgramMemory
from plimsoll.offloading.residency import Residency
from plimsoll.offloading.saved_storage import Handle, SavedStorage, needs_shape_alone

if TYPE_CHECKING:
    from plimsoll.offloading.pinned import PinnedBuffer, PinnedBuffers


class SavedStorages:
    """All of autograd's saved tensors on one device, under one budget.

    Args:
        device: The device.
        budget: The bytes that the whole program may use on the device.
        buffers: The page-locked buffers for copies.
    """

    def __init__(self, device: Any, budget: int, buffers: PinnedBuffers) -> None:
        self._buffers = buffers
        self._lock = threading.RLock()
        self._streams = CopyStreams(device, buffers)
        self._plan = Plan(budget)
        self._residency = Residency()
        self._memory = ProgramMemory(device)
        self._pager = Pager(self._plan, self._residency, self._memory)
        self._next = 0  # the next serial number
        self._in_backward = False

    def pack(self, tensor: Any, storage: Any) -> Handle:
        """Returns a handle of the tensor; saves the tensor's storage if it is not saved yet."""
        with self._lock:
            saved = self._residency.at(storage.data_ptr())
            if saved is None or saved.storage is None or not saved.has_values_of(tensor):
                saved = self._save(tensor, storage)
            return Handle(saved, tensor)

    def unpack(self, handle: Handle) -> Any:
        """Makes a saved tensor again, for use on the current stream."""
        saved = handle.saved
        with self._lock:
            shape_alone = needs_shape_alone(handle)
            if saved.is_discarded and not shape_alone:
                raise RuntimeError(
                    "plimsoll.offload dropped this tensor's values: the backward pass that had it "
                    "reads its shape alone"
                )
            pass_now = torch._C._current_graph_task_id()
            if saved.used_in != pass_now:  # its first use in this backward pass
                saved.used_in = pass_now
                self._use(saved, fetch=not shape_alone)
            elif saved.storage is None and not shape_alone:
                self._observe()
                self._pager.bring_back(saved)
                self._memory.settle(self._residency.bytes_here)
            if shape_alone:
                return handle.shape_alone()
            stream = self._streams.current()
            # one wait is enough: every other stream that reads the storage waits for `saved.stream`
            if saved.arrived is not None:
                self._streams.wait(saved.stream, saved.arrived, by_host=False)
                saved.arrived = None
            tensor = handle.tensor()
            if stream != saved.stream:
                stream.wait_stream(saved.stream)
                tensor.record_stream(stream)
            return tensor

    def bury(self, serial: int, bytes_here: int, buffer: PinnedBuffer | None) -> None:
        """Queues a deleted storage; the next save or use removes it. Any thread may call this."""
        self._residency.dead.append((serial, bytes_here, buffer))

    def movements(self) -> Movements:
        """Returns what the last step has moved."""
        return self._streams.movements

    def _save(self, tensor: Any, storage: Any) -> SavedStorage:
        residency = self._residency
        self._observe()
        in_graph_task = torch._C._current_graph_task_id() != -1
        if residency.count == 0 or (self._in_backward and not in_graph_task):
            self._begin()
        saved = SavedStorage(self, self._streams, self._next, tensor, storage)
        self._next += 1
        residency.add(saved)
        self._streams.movements.saved += saved.size
        index = self._plan.save(saved.size)
        if self._plan.leaves(index):
            saved.copy_out()
        self._pager.make_room(0)
        self._memory.settle(residency.bytes_here)
        return saved

    def _use(self, saved: SavedStorage, *, fetch: bool) -> None:
        self._observe()
        if not self._in_backward:
            self._in_backward = True
            first = self._pager.first
            self._plan.hold(serial - first for serial in self._residency.held)
            self._residency.reclaim_held()
        if not fetch:
            self._pager.discard(saved)
        self._plan.use(saved.serial - self._pager.first, saved.size)
        if fetch and saved.storage is None:
            self._pager.bring_back(saved)
        else:
            self._pager.make_room(0, spare=saved.serial)
        self._pager.prefetch(saved)
        self._memory.settle(self._residency.bytes_here)

    def _begin(self) -> None:
        self._plan.begin(self._memory.allocated.now - self._residency.bytes_here)
        self._pager.begin(self._next)
        self._in_backward = False
        self._streams.movements = Movements()
        self._residency.forget_addresses()

    def _observe(self) -> None:
        """Removes deleted storages, and records the peak of the program's own memory.

        The peak covers the time since the last save or use of a storage.
        """
        while self._residency.dead:
            serial, buffer = self._residency.remove_dead()
            self._plan.drop(serial - self._pager.first)
            if buffer is not None:
                self._buffers.give_back(buffer)
        self._plan.measure(self._memory.measure())
