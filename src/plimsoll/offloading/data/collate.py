"""Collates batches in a DataLoader's workers, directly into page-locked memory.

A DataLoader's worker writes a batch into memory that it shares with the program; a thread of the
program then copies it into page-locked memory. This module avoids that copy: the program page-locks
the shared memory. Locked pages stay in RAM whichever process writes to them, so a worker needs no
access to a GPU. Locking a page takes longer than copying it, so each page is locked only once: each
worker has a ring of *slots*, which are shared storages. The worker fills a slot again once the
program has released it. The first word of a slot says whether it is free.

Only `PrefetchLoader` locks slots, because it knows when the copy of a batch is over. For other
loaders a batch is ordinary host memory.

A forked child of the program may hold the same batches, but only the program releases a slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import collate as torch_collate

from plimsoll.base.units import format_size
from plimsoll.offloading.data.staging import can_copy, dense_strides
from plimsoll.offloading.data.tree import map_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeOut = Callable[[tuple[int, ...], Any], Any]

_HEADER = 4096  # bytes before the tensors: the first word, padded for alignment
_ALIGNMENT = 512
_MOST_SLOTS = 16  # the most slots of a worker
_FREE, _IN_USE = 0, 1

_names = itertools.count()


class PinnedCollate:
    """A `collate_fn` with which a DataLoader's workers write batches into page-locked memory.

    Use `DataLoader(…, collate_fn=plimsoll.PinnedCollate(), persistent_workers=True)`, without
    `pin_memory`, in a `PrefetchLoader`. Without `persistent_workers` each epoch has new workers
    with new memory, and locking it takes half a second for each GiB.

    If memory cannot be locked, batches are in ordinary memory, and plimsoll gives a warning. They
    are also in ordinary memory while the program's batches use all 16 slots of a worker.

    >>> from torch.utils.data import DataLoader  # doctest: +SKIP
    >>> collate = plimsoll.PinnedCollate()  # doctest: +SKIP
    >>> loader = DataLoader(data, num_workers=4, collate_fn=collate)  # doctest: +SKIP

    Args:
        collate: A function that makes a batch of samples; by default DataLoader's own. A custom
            function makes its batch in other memory, and plimsoll then copies it into the slot.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._collate = collate
        self._name = f"{os.getpid()}.{next(_names)}"
        self._slots: list[Any] = []  # in a worker process: its own slots
        weakref.finalize(self, _forget, self._name).atexit = False

    def __call__(self, samples: list[Any]) -> Any:
        """Makes a batch of samples. A worker makes it in a free slot."""
        worker = get_worker_info()
        if worker is None:
            return self._batch(samples, _page_locked if _has_gpu() else _ordinary)
        number = next((i for i, s in enumerate(self._slots) if _word(s).value == _FREE), None)
        if number is None:
            if len(self._slots) == _MOST_SLOTS:
                return self._batch(samples, _ordinary)
            number = len(self._slots)
            self._slots.append(torch.UntypedStorage._new_shared(_HEADER))
        arena = _Arena(self._slots[number])
        batch = self._batch(samples, arena.make)
        parts = [t for t in tensors_of(batch) if _fits_in_slots(t)]
        needed = sum(_rounded(t.nbytes) for t in parts)
        if arena.left < sum(_rounded(t.nbytes) for t in parts if not arena.has(t)):
            self._slots[number] = torch.UntypedStorage._new_shared(_HEADER + needed + needed // 4)
            arena = _Arena(self._slots[number])
        slot = _Slot((self._name, worker.id, number), arena.storage)
        _word(arena.storage).value = _IN_USE
        return map_tensors(
            lambda t: _Place(slot, t, arena.place(t)) if _fits_in_slots(t) else t, batch
        )

    def _batch(self, samples: list[Any], make: MakeOut) -> Any:
        if self._collate is not None:
            return self._collate(samples)

        def stack(tensors: Any, *, collate_fn_map: Any = None) -> Any:
            first = tensors[0]
            if all(
                can_copy(t)
                and not t.requires_grad
                and (t.shape, t.dtype) == (first.shape, first.dtype)
                for t in tensors
            ):
                out = make((len(tensors), *first.shape), first.dtype)
                if out is not None:
                    return torch.stack(tuple(tensors), 0, out=out)
            return torch_collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)

        functions = {**torch_collate.default_collate_fn_map, torch.Tensor: stack}
        return torch_collate.collate(samples, collate_fn_map=functions)


def _has_gpu() -> bool:
    return torch.cuda.is_available() and not torch.cuda._is_in_bad_fork()


def _page_locked(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _ordinary(shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: ARG001
    return None  # DataLoader's own function then allocates the batch


# --- in a worker ----------------------------------------------------------------------------------


class _Arena:
    """A slot while a worker fills it."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.size = storage.nbytes() - _HEADER
        self._end = 0

    @property
    def left(self) -> int:
        """Returns how many bytes at the slot's end are still unused."""
        return int(self.size - self._end)

    def has(self, tensor: Any) -> bool:
        """Returns whether a tensor lies in the slot."""
        return bool(tensor.untyped_storage().data_ptr() == self.storage.data_ptr())

    def make(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Makes a contiguous tensor in the slot, or returns None if there is no room."""
        size = _rounded(torch.Size(shape).numel() * dtype.itemsize)
        if size > self.left:
            return None
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(self.storage, (_HEADER + self._end) // dtype.itemsize, shape)
        self._end += size
        return tensor

    def place(self, tensor: Any) -> int:
        """Returns the offset of a tensor in the slot, in bytes.

        A tensor that lies elsewhere is first copied into the slot.
        """
        if self.has(tensor):
            return int(tensor.storage_offset() * tensor.itemsize)
        place = _HEADER + self._end
        there = torch.empty(0, dtype=tensor.dtype)
        there.set_(self.storage, place // tensor.itemsize, tensor.shape, dense_strides(tensor))
        there.copy_(tensor.detach())
        self._end += _rounded(tensor.nbytes)
        return place


class _Slot:
    """The slot of a batch, as the worker sends it to the program."""

    def __init__(self, key: tuple[str, int, int], storage: Any) -> None:
        self._key = key
        self._storage = storage

    def __reduce__(self) -> Any:
        return _open_slot, (self._key, self._storage)


class _Place:
    """Describes a tensor in a slot: the worker sends this to the program in place of the tensor."""

    def __init__(self, slot: _Slot, tensor: Any, place: int) -> None:
        self._parts = (slot, tensor.dtype, place, tuple(tensor.shape), dense_strides(tensor))

    def __reduce__(self) -> Any:
        return _tensor_at, self._parts


def _fits_in_slots(tensor: Any) -> bool:
    return can_copy(tensor) and tensor.device.type == "cpu" and not tensor.requires_grad


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _word(storage: Any) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(storage.data_ptr())


# --- in the program -------------------------------------------------------------------------------


class _Mapping:
    """A worker's slot, as mapped into the program's memory."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.is_locked = False
        self._was_tried = False
        self._process = os.getpid()

    def lock(self) -> None:
        """Page-locks the slot through the current GPU; only the first call tries."""
        if self._was_tried:
            return
        self._was_tried = True
        address, size = self.storage.data_ptr(), self.storage.nbytes()
        runtime = torch.cuda.cudart()
        error = runtime.cudaHostRegister(address, size, 0)
        self.is_locked = int(error) == 0
        if not self.is_locked:
            with contextlib.suppress(RuntimeError):  # this launch reports, and so clears, the error
                torch.zeros(1, device="cuda")
            warnings.warn(
                f"cannot page-lock {format_size(size)} that a worker writes into: "
                f"{runtime.cudaGetErrorString(error)}; batches are copied into "
                "other memory first",
                stacklevel=2,
            )

    def __del__(self) -> None:
        is_ours = self._process == os.getpid()
        if self.is_locked and is_ours and not sys.is_finalizing():
            torch.cuda.cudart().cudaHostUnregister(self.storage.data_ptr())


class _Filling:
    """One batch in a slot, from its arrival until the program drops the batch's last tensor."""

    def __init__(self, mapping: _Mapping) -> None:
        self.mapping = mapping
        self.is_held = False  # whether a PrefetchLoader holds the batch until its copies end
        self._process = os.getpid()

    def end(self) -> None:
        """Tells the worker that the slot is free: the program has dropped the batch's tensors."""
        if self._process != os.getpid():
            return  # this is a forked child of the program, and the program may still use the slot
        _fillings.pop(self.mapping.storage.data_ptr(), None)
        if self.mapping.is_locked and not self.is_held:
            _wait_for_gpus()  # copies may be running on any stream
        _word(self.mapping.storage).value = _FREE


def _wait_for_gpus() -> None:
    """Waits for all work that this process has queued on any GPU."""
    for gpu in range(torch.cuda.device_count()):
        # synchronizing a GPU without a CUDA context would create one
        if torch._C._cuda_hasPrimaryContext(gpu):
            torch.cuda.synchronize(gpu)


_lock = threading.RLock()  # reentrant: a garbage collection during a call may release a slot
_mappings: dict[tuple[str, int, int], _Mapping] = {}
_fillings: dict[int, _Filling] = {}  # by the slot's address


def _open_slot(key: tuple[str, int, int], storage: Any) -> Any:
    """Returns a slot's memory as a tensor of bytes; dropping its last view releases the slot."""
    with _lock:
        mapping = _mappings.get(key)
        if mapping is None or mapping.storage.data_ptr() != storage.data_ptr():
            mapping = _mappings[key] = _Mapping(storage)  # the slot has grown, or the worker is new
        filling = _fillings[storage.data_ptr()] = _Filling(mapping)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    weakref.finalize(whole.untyped_storage(), filling.end).atexit = False
    return whole


def _tensor_at(
    whole: Any, dtype: Any, place: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    tensor = torch.empty(0, dtype=dtype)
    return tensor.set_(whole.untyped_storage(), place // dtype.itemsize, shape, strides)


def _forget(name: str) -> None:
    """Drops the slots of a deleted PinnedCollate; each is unlocked once its batch is released."""
    with _lock:
        for key in [key for key in _mappings if key[0] == name]:
            del _mappings[key]


def page_lock(tree: object) -> None:
    """Page-locks the slots that hold a batch's tensors.

    The caller must hold the batch until its copies are over.
    """
    for tensor in tensors_of(tree):
        if tensor.device.type == "cpu" and can_copy(tensor):
            filling = _fillings.get(tensor.untyped_storage().data_ptr())
            if filling is not None:
                filling.is_held = True
                filling.mapping.lock()
