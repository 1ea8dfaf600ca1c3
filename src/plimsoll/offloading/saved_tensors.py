"""Saved storages of one device: copies to the host and back, and what is on the card.

A storage that autograd saves is a `SavedStorage`; every tensor saved of it is a `Handle`, a view to
be made again. Copies run on two streams of their own. The host does not wait for them: when memory
is needed, the *compute stream* waits until the copy has left, and the storage is freed at once. The
memory is the next request's in stream order, and what is allocated at each point of the program
does not depend on how fast copies are.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from plimsoll.engines.current import opened_engine
from plimsoll.errors import InputError
from plimsoll.offloading.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from plimsoll.offloading.pinned import PinnedBuffer, PinnedBuffers

# Backward functions that read only the shape of a saved tensor that has this many dimensions.
_SHAPE_ONLY = {"NllLossBackward0": 2, "NllLoss2DBackward0": 4}
_NOWHERE = 512  # an address: not null, which would say that memory is still to be allocated


class Allocated(NamedTuple):
    """Bytes of a device's memory that are allocated: now, at the peak, and in all the time."""

    now: int
    peak: int
    total: int


@dataclass
class Movements:
    """What one step moved, in bytes, and the pairs of events between which the GPU waited."""

    saved: int = 0
    out: int = 0
    back: int = 0
    waits: list[tuple[Any, Any]] | None = None

    def waited_seconds(self) -> float:
        """How long the compute stream stood still; waits for the last of it."""
        seconds = 0.0
        for begin, end in self.waits or ():
            end.synchronize()
            seconds += begin.elapsed_time(end) / 1000
        return seconds


class SavedStorage:
    """One storage that autograd saved: on the card, in host memory, or in both.

    Attributes:
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
        "__weakref__",
        "arrived",
        "buffer",
        "copied",
        "counted",
        "is_computed",
        "is_discarded",
        "owner",
        "serial",
        "size",
        "storage",
        "stream",
        "used_in",
        "version",
        "views",
    )

    def __init__(self, owner: SavedStorages, serial: int, tensor: Any, storage: Any) -> None:
        self.owner = owner
        self.serial = serial
        self.size: int = storage.nbytes()
        self.version: int = tensor._version
        self.counted = counted_part(tensor)
        self.is_computed: bool = not tensor.is_leaf
        self.storage = storage
        self.stream = owner.current_stream()
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

    def release(self) -> None:
        """Free its memory on the card, for use after the copies that are under way."""
        for event in (self.copied, self.arrived):
            if event is not None:
                self.owner.wait(self.stream, event, by_host=not self.is_computed)
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
        device = self.saved.owner.device
        size = math.prod(self.shape) * self.dtype.itemsize
        storage = torch._C._construct_storage_from_data_pointer(_NOWHERE, device, size)
        strides = torch.empty(self.shape, device="meta").stride()
        return torch.empty(0, dtype=self.dtype, device=device).set_(storage, 0, self.shape, strides)


References = dict[int, "weakref.ref[SavedStorage]"]


class SavedStorages:
    """All that autograd has saved on one device, under one budget.

    Args:
        device: The device.
        budget: Bytes of the device for the whole program.
        buffers: Where copies go.
    """

    def __init__(self, device: Any, budget: int, buffers: PinnedBuffers) -> None:
        self.device = device
        self._buffers = buffers
        self._plan = Plan(budget)
        self._lock = threading.RLock()
        self._out = torch.cuda.Stream(device)
        self._back = torch.cuda.Stream(device)
        self._streams: dict[int, Any] = {}  # by the driver's number
        self._dead: deque[tuple[int, int, PinnedBuffer | None]] = deque()
        self._movements = Movements(waits=[])

        # By serial; dead ones are taken out before anything is decided.
        self._here: References = {}  # never left since it was saved
        self._returned: References = {}
        self._held: References = {}  # by the program as well
        self._away: References = {}
        self._by_address: References = {}

        self._first = 0  # serial of this step's first storage
        self._next = 0
        self._live = 0
        self._bytes_here = 0
        self._in_backward = False
        self._ahead = 0  # position up to which all that is used is on the card

        self._allocated = allocated_bytes(device)  # when it was last looked at
        self._has_changed = False  # since then, by what is done here
        self._here_then = 0

    # --- the hooks --------------------------------------------------------------------------------

    def pack(self, tensor: Any, storage: Any) -> Handle:
        """Save a tensor."""
        with self._lock:
            saved = living(self._by_address, storage.data_ptr())
            if saved is None or saved.storage is None or not saved.has_values_of(tensor):
                saved = self._save(tensor, storage)
            return Handle(saved, tensor)

    def unpack(self, handle: Handle) -> Any:
        """Make a saved tensor again, on the current stream."""
        saved = handle.saved
        with self._lock:
            shape_alone = needs_shape_alone(handle)
            if saved.is_discarded and not shape_alone:
                raise RuntimeError(
                    "plimsoll.offload dropped this tensor's values: the backward pass that had it "
                    "reads its shape alone"
                )
            pass_now = torch._C._current_graph_task_id()
            if saved.used_in != pass_now:  # what the program does, whatever has left meanwhile
                saved.used_in = pass_now
                self._use(saved, fetch=not shape_alone)
            elif saved.storage is None and not shape_alone:
                self._observe()
                self._return(saved)
                self._settle()
            if shape_alone:
                return handle.shape_alone()
            stream = self.current_stream()
            if saved.arrived is not None:  # for all who use it, each of whom follows its stream
                self.wait(saved.stream, saved.arrived, by_host=False)
                saved.arrived = None
            tensor = handle.tensor()
            if stream != saved.stream:
                stream.wait_stream(saved.stream)
                tensor.record_stream(stream)
            return tensor

    def movements(self) -> Movements:
        """Of the last step."""
        return self._movements

    def current_stream(self) -> Any:
        """The device's, as `torch.cuda.current_stream`, which takes many times as long."""
        raw = torch._C._cuda_getCurrentRawStream(self.device.index)
        stream = self._streams.get(raw)
        if stream is None:
            stream = self._streams[raw] = torch.cuda.current_stream(self.device)
        return stream

    # --- events -----------------------------------------------------------------------------------

    def _save(self, tensor: Any, storage: Any) -> SavedStorage:
        allocated = self._observe()
        in_graph_task = torch._C._current_graph_task_id() != -1
        if self._live == 0 or (self._in_backward and not in_graph_task):
            self._begin(allocated)
        saved = SavedStorage(self, self._next, tensor, storage)
        self._next += 1
        self._live += 1
        reference = weakref.ref(saved)
        self._here[saved.serial] = reference
        self._by_address[storage.data_ptr()] = reference
        self._bytes_here += saved.size
        self._movements.saved += saved.size
        index = self._plan.save(saved.size)
        if self._plan.leaves(index):
            self._copy_out(saved)
        self._make_room(0)
        self._settle()
        return saved

    def _use(self, saved: SavedStorage, *, fetch: bool) -> None:
        self._observe()
        if not self._in_backward:
            self._in_backward = True
            self._plan.hold(serial - self._first for serial in self._held)
            self._here = dict(sorted((self._here | self._held).items()))
            self._held = {}
        if not fetch:
            self._discard(saved)
        self._plan.use(saved.serial - self._first, saved.size)
        if fetch and saved.storage is None:
            self._return(saved)
        else:
            self._make_room(0, spare=saved.serial)
        self._prefetch(saved)
        self._settle()

    def _return(self, saved: SavedStorage) -> None:
        """Bring a storage back now, whatever has to leave for it."""
        self._make_room(saved.size)
        try:
            self._fetch(saved)
        except torch.OutOfMemoryError:
            for where in (self._here, self._returned, self._held):
                self._leave(where, 0, saved.serial)
            self._fetch(saved)

    def _begin(self, allocated: int) -> None:
        self._plan.begin(allocated - self._bytes_here)
        self._first = self._next
        self._in_backward = False
        self._ahead = 0
        self._movements = Movements(waits=[])
        self._by_address = {
            address: reference
            for address, reference in self._by_address.items()
            if reference() is not None
        }

    def _observe(self) -> int:
        """Measure what the program took since the last event; what is allocated now."""
        while self._dead:
            serial, size, buffer = self._dead.popleft()
            self._live -= 1
            self._bytes_here -= size
            for where in (self._here, self._returned, self._held, self._away):
                where.pop(serial, None)
            self._plan.drop(serial - self._first)
            if buffer is not None:
                self._buffers.give_back(buffer)
        before, now = self._allocated, allocated_bytes(self.device)
        grown = before.now + now.total - before.total
        self._plan.measure(max(min(grown, now.peak), now.now) - self._here_then)
        self._allocated = now
        self._has_changed = False
        return now.now

    def _settle(self) -> None:
        """Note what is allocated when the program goes on."""
        if self._has_changed:
            self._allocated = allocated_bytes(self.device)
        self._here_then = self._bytes_here

    # --- decisions --------------------------------------------------------------------------------

    def _make_room(self, size: int, spare: int = -1) -> None:
        """Let storages leave until the program and `size` bytes fit; those needed last go first."""
        limit = self._plan.limit - size
        expected, ahead = self._plan.expected(), self._plan.expected_of_forward()
        if expected is None or ahead is None:
            self._leave(self._held, 0, spare)
            self._leave(self._here, 0, spare)
            self._leave(self._returned, 0, spare, but_arriving=True)
            return
        for where in (self._here, self._returned, self._held):
            if self._bytes_here > limit - ahead:
                self._leave(where, max(limit - ahead, 0), spare)
        if self._bytes_here > limit - expected and self._held:
            torch.clear_autocast_cache()  # casts of weights, which are made again if need be
            self._has_changed = True
            self._leave(self._held, max(limit - expected, 0), spare)

    def _leave(
        self, where: References, most: int, spare: int, *, but_arriving: bool = False
    ) -> None:
        serials: Iterable[int] = list(where)
        if where is self._returned:
            serials = reversed(list(where))
        for serial in serials:
            if self._bytes_here <= most:
                return
            saved = where[serial]()
            if saved is None or serial == spare or (but_arriving and saved.arrived is not None):
                continue
            if saved.is_held_elsewhere():
                self._held[serial] = where.pop(serial)
                continue
            if saved.copied is None:
                self._copy_out(saved)
            self._by_address.pop(saved.storage.data_ptr(), None)
            saved.release()
            self._has_changed = True
            self._bytes_here -= saved.size
            self._away[serial] = where.pop(serial)
            self._ahead = 0

    def _discard(self, saved: SavedStorage) -> None:
        """Only its shape is needed, once, if no other tensor was saved of it."""
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        if saved.views > 1 or keeps or saved.storage is None:
            return
        self._by_address.pop(saved.storage.data_ptr(), None)
        saved.release()
        self._has_changed = True
        saved.is_discarded = True
        self._plan.discard(saved.serial - self._first)
        self._bytes_here -= saved.size
        for where in (self._here, self._returned, self._held):
            where.pop(saved.serial, None)

    def _prefetch(self, used: SavedStorage) -> None:
        """Bring back what is used next, as far ahead as there is room."""
        for position, saved in self._next_away(used):
            expected = self._plan.expected(position)
            if expected is None:  # room for as much again, for what is computed from it
                expected = allocated_bytes(self.device).now - self._bytes_here + saved.size
            if self._bytes_here + saved.size + expected > self._plan.limit:
                return
            try:
                self._fetch(saved)
            except torch.OutOfMemoryError:  # there is room, but not in one piece
                self._plan.keep_away(saved.size)
                return

    def _next_away(self, used: SavedStorage) -> Iterator[tuple[int, SavedStorage]]:
        if not self._plan.is_known:
            before = max((serial for serial in self._away if serial < used.serial), default=-1)
            if (saved := living(self._away, before)) is not None:
                yield self._plan.position, saved
        for position, index in self._plan.coming(self._ahead):
            self._ahead = position
            if (saved := living(self._away, self._first + index)) is not None:
                yield position, saved

    # --- copies -----------------------------------------------------------------------------------

    def _copy_out(self, saved: SavedStorage) -> None:
        buffer = self._buffers.take(saved.size)
        self._out.wait_stream(saved.stream)
        if buffer.busy is not None:
            self._out.wait_event(buffer.busy)
        copy(buffer.bytes[: saved.size], as_bytes(saved.storage), self._out)
        saved.copied = buffer.busy = self._out.record_event()
        saved.buffer = buffer
        self._movements.out += saved.size

    def _fetch(self, saved: SavedStorage) -> None:
        assert saved.buffer is not None
        stream = self.current_stream()
        there = torch.empty(saved.size, dtype=torch.uint8, device=self.device)
        self._has_changed = True
        self._back.wait_stream(stream)  # its memory may have been another's until now
        self._back.wait_event(saved.copied)
        copy(there, saved.buffer.bytes[: saved.size], self._back)
        saved.arrived = saved.buffer.busy = self._back.record_event()
        saved.storage = there.untyped_storage()
        saved.stream = stream
        saved.is_computed = True
        self._bytes_here += saved.size
        self._movements.back += saved.size
        reference = self._away.pop(saved.serial)
        self._returned[saved.serial] = reference
        self._by_address[saved.storage.data_ptr()] = reference

    def wait(self, stream: Any, event: Any, *, by_host: bool) -> None:
        """Let a stream, or the host, wait for a copy, and note for how long."""
        if event.query():
            return
        if by_host:
            event.synchronize()
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        stream.wait_event(event)
        end.record(stream)
        if self._movements.waits is not None:
            self._movements.waits.append((begin, end))

    def bury(self, serial: int, bytes_here: int, buffer: PinnedBuffer | None) -> None:
        """A storage has died, in whatever thread; the next event clears up after it."""
        self._dead.append((serial, bytes_here, buffer))


def living(where: References, key: int) -> SavedStorage | None:
    """The storage of a key, if it is there and has not died."""
    reference = where.get(key)
    return None if reference is None else reference()


def counted_part(tensor: Any) -> tuple[int, int] | None:
    """The part of its storage that PyTorch counts a tensor's versions for; None if never changed.

    Views have the counter of their base. Those of `unsafe_chunk` and `unsafe_split` have one each,
    so that equal numbers may stand for different contents of the storage.
    """
    if tensor._version == 0:
        return None
    base = tensor._base if tensor._is_view() else tensor
    return base.storage_offset(), base.numel()


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


def allocated_bytes(device: Any) -> Allocated:
    """The allocator's counters; `torch.cuda.memory_stats` takes many times as long."""
    engine = opened_engine(device.index)
    if engine is not None:
        return Allocated(*engine.dedicated_allocated_bytes)
    try:
        counters = torch._C._cuda_memoryStats(device.index)["allocated_bytes"]["all"]
    except RuntimeError as error:
        raise InputError(
            f"plimsoll.offload needs an allocator that counts what is allocated: {error}"
        ) from error
    return Allocated(counters["current"], counters["peak"], counters["allocated"])


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
