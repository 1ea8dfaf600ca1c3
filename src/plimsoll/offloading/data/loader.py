"""Copies batches to the GPU before the program needs them.

While the program works on a batch, the next ones are copied. Each batch has its own memory, which
is allocated on the program's stream and freed like the memory of any tensor. So a batch that the
program holds is never overwritten.

At most `depth` + 1 batches are on the device. They include the batch that the program computes
with. While the program asks for the next batch, the variable of its loop usually still holds the
previous batch, which counts too. The previous batch is freed when the variable gets the next batch.
The `depth` + 1 batches do not include older batches that the program keeps.

The wrapped loader runs only inside `next`, in the program's own thread, so its random numbers,
errors and interrupts are the same as without plimsoll. An error of the wrapped loader is raised
only after the program has received all batches before it.
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
    """Yields a loader's batches on a device, and copies the next ones while the program computes.

    The stream that was current when a batch was returned may use the batch immediately. The program
    may keep batches. A batch may have tensors in tuples, lists, dictionaries, named tuples,
    dataclasses and Hugging Face's batches. Other objects pass through unchanged. With
    `device="cpu"`, as on a machine without a GPU, whole batches pass through unchanged. Attributes
    that this class does not have (`dataset`, `sampler`, `batch_size`, …) are the wrapped loader's.

    >>> for batch in plimsoll.PrefetchLoader(loader, "cuda", depth=2):  # doctest: +SKIP
    ...     train_step(batch)

    Args:
        loader: Any iterable of batches: a DataLoader, a list, a generator. Batches should be
            page-locked (`pin_memory=True`, or `plimsoll.PinnedCollate`); otherwise the program's
            thread first copies them into page-locked memory.
        device: "cuda", "cuda:1", "cpu" or a `torch.device`. "cuda" is the GPU that is current when
            a loop begins.
        depth: At most `depth` + 1 batches are on the device. They include the batch of the loop,
            which the loop holds until it has the next one. So with a depth of 1, copies and steps
            alternate, unless the program deletes its batch before it asks for the next one.

    Raises:
        InputError: If there is no such device, or the depth is not positive.
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
            # To destroy a stream, PyTorch makes the stream's GPU current. This aborts a forked
            # process, such as a worker. Garbage is collected before the fork, so that a worker's
            # garbage collector finds no stream to destroy.
            gc.collect()
        return _Ahead(iter(self.loader), device, self.depth, self._times)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # `copy.copy` asks for `loader` before it is set
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Calls the loader's `set_epoch`, or else that of each sampler and dataset that has one."""
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
        """Returns the statistics so far; waits for the last copy."""
        return self._times.statistics()

    def __str__(self) -> str:
        return str(self.statistics())


class _Times:
    """The sums for a loader's statistics."""

    def __init__(self) -> None:
        self.batches = 0
        self.copied_bytes = 0
        self.loader = Clock()
        self.staging = Clock()
        self.gpu = Clock()
        self.inside = Clock()  # time inside `next`
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
    """Iterates over the batches of a loader once, and copies them ahead of their use."""

    def __init__(self, batches: Iterator[Batch], device: Any, depth: int, times: _Times) -> None:
        self._batches = batches
        self._device = device
        self._depth = depth
        self._times = times
        self._sides = SideStreams()
        self._returned_at: float | None = None

        self._staged: Staged | None = None
        self._end: Exception | None = None  # the loader's exception, until all copies are returned
        self._copies: deque[Copy[Batch]] = deque()
        self._read: deque[Any] = deque()  # events at the end of copies from host memory
        self._last: list[weakref.ref[Any]] = []  # storages of the last returned batch

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
        for _ in range(2):  # at most two new copies: of the batch to return, and of a later batch
            if len(self._copies) + had <= self._depth or not self._copies:
                self._pull()
                self._start()
        if not self._copies:
            end, self._end = self._end, None
            try:
                raise end or StopIteration
            finally:
                del end  # the exception's traceback would otherwise keep this frame alive
        copy = self._copies.popleft()
        batch: Batch = self._times.waits.wait(copy)
        self._last = [weakref.ref(tensor.untyped_storage()) for tensor in copy.made]
        return batch

    def _pull(self) -> None:
        """Fetches the next batch from the loader, or keeps the exception that ended the loader."""
        if self._staged is not None or self._end is not None:
            return
        times = self._times
        try:
            with times.loader:
                batch = next(self._batches)
            with times.gpu:  # wait until the GPU has at most `depth` batches left to read
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
        """Begins to copy the next batch; if there is no memory for it, the next call retries."""
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
