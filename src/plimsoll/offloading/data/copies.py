"""Copies tensors between host and GPUs while the program continues.

A copy runs on a *side stream*. The result's memory is allocated on the *program's stream*: the
stream that is current when the copy begins. The side stream first waits for the work queued on the
program's stream, because that work may still use the memory. The program's stream waits for the
copy when the program asks for the result. After that the memory belongs to the program's stream
alone, which frees and reuses it in stream order. If the program asks for the result on another
stream, `wait` calls `record_stream`. PyTorch then reuses the freed memory only when the other
stream's queued work is over.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Generic, TypeVar

import torch

from plimsoll.offloading.data.devices import parse_device, with_number
from plimsoll.offloading.data.staging import HOST_MEMORY, Staged, can_copy, like
from plimsoll.offloading.data.tree import map_tensors, tensors_of

Tree = TypeVar("Tree")


class SideStreams(dict[Any, Any]):
    """One stream for copies on each GPU, made on first use."""

    def __missing__(self, gpu: Any) -> Any:
        return self.setdefault(gpu, torch.cuda.Stream(gpu))


class Copy(Generic[Tree]):
    """A running copy; `wait` returns the result.

    The source must not be written to before `wait` has returned. A copy may be dropped without
    waiting.

    Attributes:
        made: The tensors of the result that are copies, each with its own memory.
        event: The event after which the result is on its GPU; None if nothing goes to a GPU.
    """

    def __init__(self, staged: Staged, device: Any, sides: SideStreams) -> None:
        """Queues the copy; an error leaves everything as it was.

        Args:
            staged: The tensors to copy; those on the host are page-locked.
            device: The target: a GPU with its number, or the host.
            sides: The streams to run the copy on.
        """
        # for each GPU: the event at which its copies are done, and the program's stream
        self._under_way: list[tuple[Any, Any]] = []
        self.event: Any = None
        self._program: Any = None
        self._device = device
        sources = [t for t in tensors_of(staged.tree) if t.device != device and can_copy(t)]
        self._on_gpus = [t for t in sources if t.is_cuda]
        gpus = {t.device for t in self._on_gpus}
        if sources and device.type == "cuda":
            gpus.add(device)
        with torch.inference_mode(mode=False), torch.no_grad():
            options = {"device": device} if device.type == "cuda" else {"pin_memory": True}
            self.made = [like(source, **options) for source in sources]
            copies = dict(zip(map(id, sources), self.made, strict=True))
            self._tree: Tree = map_tensors(
                lambda t: copies[id(t)] if id(t) in copies else t.to(device), staged.tree
            )
            streams = {gpu: (sides[gpu], torch.cuda.current_stream(gpu)) for gpu in gpus}
            for beside, program in streams.values():
                beside.wait_stream(program)
            try:
                with contextlib.ExitStack() as stack:
                    for beside, _ in streams.values():
                        stack.enter_context(torch.cuda.stream(beside))
                    for target, source in zip(self.made, sources, strict=True):
                        target.copy_(source, non_blocking=True)
            except BaseException:
                for beside, _ in streams.values():
                    beside.synchronize()
                raise
        for gpu, (beside, program) in streams.items():
            event = beside.record_event()
            self._under_way.append((event, program))
            if gpu == device:
                self.event, self._program = event, program
        if self.event is not None:
            HOST_MEMORY.hold(self.event, [t for t in sources if not t.is_cuda], staged.buffer)
        for target, source in zip(self.made, sources, strict=True):
            target.requires_grad_(source.requires_grad)

    @property
    def copied_bytes(self) -> int:
        """Returns the number of bytes copied."""
        return sum(target.nbytes for target in self.made)

    def is_done(self) -> bool:
        """Returns whether the copy is complete."""
        return all(event.query() for event, _ in self._under_way)

    def wait(self) -> Tree:
        """Returns the result.

        If the result is on a GPU, the current stream waits for the copy, and the host does not. A
        result on the host is complete when this returns.
        """
        if self.event is not None:
            current = torch.cuda.current_stream(self._device)
            if current != self._program:
                current.wait_event(self.event)
                for target in self.made:
                    target.record_stream(current)
        elif self._device.type == "cpu":
            for event, _ in self._under_way:
                event.synchronize()
        self._settle()
        return self._tree

    def _settle(self) -> None:
        """Makes the program's streams wait for the copy, so that the copy's memory may be freed."""
        for event, program in self._under_way:
            program.wait_event(event)
        self._under_way = []
        self._on_gpus = []

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._settle()


# one stream for each direction, because the bus can transfer in both directions simultaneously
_to_gpus, _to_host = SideStreams(), SideStreams()


def copy_async(tree: Tree, device: Any) -> Copy[Tree]:
    """Begins to copy a tree's tensors to a GPU, from one GPU to another, or back to the host.

    The program continues during the copy. `wait` on the returned object returns the copied tree,
    which the current stream may use and the program may keep. The copy contains the results of all
    work queued before this call. Copies on the host are page-locked. Copies are plain tensors,
    without autograd's history. Objects that are not tensors, and tensors that are already on the
    device, are passed through.

    >>> copy = plimsoll.copy_async(batch, "cuda")  # doctest: +SKIP
    >>> batch = copy.wait()  # doctest: +SKIP

    Args:
        tree: A tensor, or a tuple, list, dictionary or dataclass that contains tensors. It may
            contain other objects too.
        device: "cuda", "cuda:1", "cpu" or a `torch.device`.

    Raises:
        InputError: If there is no such device.
    """
    where = with_number(parse_device(device))

    to_host = where.type == "cpu"
    staged = Staged(tree, None) if to_host else HOST_MEMORY.stage(tree)
    try:
        return Copy(staged, where, _to_host if to_host else _to_gpus)
    except BaseException:
        HOST_MEMORY.give_back(staged)
        raise
