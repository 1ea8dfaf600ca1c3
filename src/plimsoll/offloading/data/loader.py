"""Batches that are on the GPU before they are needed.

While the program works on a batch, the next ones are copied. Each batch has memory of its own,
which comes from the program's stream and goes back to it when the program lets go, as that of any
tensor; nothing is ever written into what the program may still hold. When the program asks for the
next batch, it usually has the last one still, in the variable of its loop: so with that one there
are never more than `depth` + 1 on the device, and one less while the program computes. Batches that
it keeps for longer are its own affair.

The wrapped loader only ever runs inside of `next`, in the program's own thread: its random numbers,
its errors and its interrupts are what they would be without us. An error waits its turn: batches
that came before it are handed out first.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from plimsoll.base.errors import InputError
from plimsoll.offloading.data.collate import page_lock
from plimsoll.offloading.data.copies import Copy, SideStreams
from plimsoll.offloading.data.devices import parse_device, with_number
from plimsoll.offloading.data.staging import HOST_MEMORY, Staged
from plimsoll.offloading.data.statistics import Clock, LoaderStatistics, Waits
from plimsoll.offloading.data.tree import map_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Batch = TypeVar("Batch")


class PrefetchLoader(Generic[Batch]):
    """The batches of a loader, on a device, copied ahead while the program computes.

    Batches are safe to use on the stream that is current when they are handed out, and to keep.
    They may be tensors in tuples, lists, dictionaries, named tuples, dataclasses and Hugging Face's
    batches; whatever else is in them passes through, and so does everything on a machine without a
    GPU, with `device="cpu"`. What is asked of this object besides (`dataset`, `sampler`,
    `batch_size`, …) is the wrapped loader's.

    >>> for batch in plimsoll.PrefetchLoader(loader, "cuda", depth=2):  # doctest: +SKIP
    ...     train_step(batch)

    Args:
        loader: Any iterable of batches: a DataLoader, a list, a generator function's result. The
            batches are best page-locked (`pin_memory=True`, or `plimsoll.PinnedCollate`); others
            are written into page-locked memory first, by the program's thread.
        device: "cuda", "cuda:1", "cpu" or a `torch.device`; a GPU without a number is the one that
            is current when a loop begins.
        depth: How many batches the device has memory for, beside the one that the program has. A
            loop keeps its last batch until it has the next, so with 1 copies and steps take turns,
            unless the program deletes its batch before it asks for another.

    Raises:
        InputError: If there is no such device, or the depth is not a number above zero.
    """

    def __init__(self, loader: Iterable[Batch], device: Any, depth: int = 2) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise InputError(f"a depth is a number above zero, not {depth!r}")
        self.loader = loader
        self.device = parse_device(device)
        self.depth = depth
        self._times = _Times()

    def __iter__(self) -> Iterator[Batch]:
        device = with_number(self.device)
        if device.type == "cpu":
            return _on_the_host(self.loader, self._times)
        if getattr(self.loader, "num_workers", 0) > 0:
            # A forked worker aborts where its collector meets a stream of its parent's: PyTorch
            # makes the stream's GPU current to destroy it. So none may be left to the collector.
            gc.collect()
        return _Ahead(iter(self.loader), device, self.depth, self._times)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while a copy of this is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, or else its samplers and its dataset, as far as they have epochs."""
        loader: Any = self.loader
        parts = [loader]
        if not hasattr(loader, "set_epoch"):
            batches = getattr(loader, "batch_sampler", None)
            sampler = getattr(loader, "sampler", None)
            parts = [sampler, batches, getattr(batches, "sampler", None)]
            parts.append(getattr(loader, "dataset", None))
        for part in {id(part): part for part in parts}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def statistics(self) -> LoaderStatistics:
        """Where the time went so far; waits for the last copy."""
        return self._times.statistics()

    def __str__(self) -> str:
        return str(self.statistics())


class _Times:
    """What adds up to a loader's statistics."""

    def __init__(self) -> None:
        self.batches = 0
        self.copied_bytes = 0
        self.loader = Clock()
        self.staging = Clock()
        self.gpu = Clock()
        self.inside = Clock()  # of `next`
        self.program_seconds = 0.0
        self.waits = Waits()

    def statistics(self) -> LoaderStatistics:
        return LoaderStatistics(
            batches=self.batches,
            copied_bytes=self.copied_bytes,
            total_seconds=self.inside.seconds + self.program_seconds,
            loader_seconds=self.loader.seconds,
            staging_seconds=self.staging.seconds,
            gpu_seconds=self.gpu.seconds,
            program_seconds=self.program_seconds,
            copy_seconds=self.waits.seconds(),
            pinned_bytes=HOST_MEMORY.held_bytes,
        )


def _on_the_host(loader: Iterable[Batch], times: _Times) -> Iterator[Batch]:
    batches = iter(loader)
    while True:
        with times.inside, times.loader:
            try:
                batch = next(batches)
            except StopIteration:
                return
            batch = map_tensors(lambda tensor: tensor.to("cpu"), batch)
        times.batches += 1
        began = time.perf_counter()
        yield batch
        times.program_seconds += time.perf_counter() - began


class _Ahead(Generic[Batch]):
    """One loop over the batches."""

    def __init__(self, batches: Iterator[Batch], device: Any, depth: int, times: _Times) -> None:
        self._batches = batches
        self._device = device
        self._depth = depth
        self._times = times
        self._sides = SideStreams()
        self._returned_at: float | None = None

        self._staged: Staged | None = None
        self._end: Exception | None = None  # what the loader raised, until its turn
        self._copies: deque[Copy[Batch]] = deque()
        self._read: deque[Any] = deque()  # events after which host memory was read
        self._last: list[weakref.ref[Any]] = []  # storages of the batch that was handed out last

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        times = self._times
        if self._returned_at is not None:
            times.program_seconds += time.perf_counter() - self._returned_at
            self._returned_at = None
        with times.inside:
            batch = self._next()
        times.batches += 1
        self._returned_at = time.perf_counter()
        return batch

    def __del__(self) -> None:
        if self._staged is not None and not sys.is_finalizing():
            HOST_MEMORY.bury(self._staged)

    def _next(self) -> Batch:
        had = int(any(storage() is not None for storage in self._last))
        for _ in range(2):  # one for the one that is handed out, and one to get further ahead
            if len(self._copies) + had <= self._depth or not self._copies:
                self._pull()
                self._start()
        if not self._copies:
            end, self._end = self._end, None
            try:
                raise end or StopIteration
            finally:
                del end  # it would hold on to this frame, which holds on to it
        copy = self._copies.popleft()
        batch: Batch = self._times.waits.wait(copy)
        self._last = [weakref.ref(tensor.untyped_storage()) for tensor in copy.made]
        return batch

    def _pull(self) -> None:
        """Have the next batch ready to be copied, or know how the loader ended."""
        if self._staged is not None or self._end is not None:
            return
        times = self._times
        try:
            with times.loader:
                batch = next(self._batches)
            with times.gpu:  # so many batches at most wait in host memory to be read
                while len(self._read) > self._depth:
                    self._read.popleft().synchronize()
            with times.staging:
                with torch.cuda.device(self._device):
                    page_lock(batch)
                self._staged = HOST_MEMORY.stage(batch)
        except StopIteration:
            self._end = StopIteration()
        except Exception as error:
            trace = error.__traceback__
            self._end = error.with_traceback(trace.tb_next if trace else None)

    def _start(self) -> None:
        """Begin to copy it; if there is no memory to get ahead, the next call tries again."""
        if self._staged is None:
            return
        try:
            copy: Copy[Batch] = Copy(self._staged, self._device, self._sides)
        except torch.OutOfMemoryError:
            if not self._copies:
                raise
            return
        self._staged = None
        self._copies.append(copy)
        if copy.event is not None:
            self._read.append(copy.event)
        self._times.copied_bytes += copy.copied_bytes
