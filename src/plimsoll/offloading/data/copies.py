"""Copies that run beside the program, and whose memory nobody has to think about.

A copy runs on a *side stream*. Its memory is allocated on the *program's stream*, the one that is
current where the copy is begun: the side stream first waits for what is queued there, because the
memory may have been another tensor's until then, and the program's stream waits for the copy when
the program asks for the result. From then on the memory is like any other of that stream, to be
freed and used again in its order. `record_stream`, which keeps freed memory until the host sees
that an event is over, is needed only where a result is asked for on another stream.
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
    """Streams for copies, one a GPU, made when they are first asked for."""

    def __missing__(self, gpu: Any) -> Any:
        return self.setdefault(gpu, torch.cuda.Stream(gpu))


class Copy(Generic[Tree]):
    """A copy under way; `wait` gives the result.

    What is copied must not be written to before `wait` has returned. To let go of a copy without
    waiting is fine.

    Attributes:
        made: The tensors of the result that are copies, each with memory of its own.
        event: After which the result is on its GPU, or None if nothing goes to one.
    """

    def __init__(self, staged: Staged, device: Any, sides: SideStreams) -> None:
        """Queue it; if that fails, nothing has happened.

        Args:
            staged: What to copy, page-locked as far as it is the host's.
            device: Where to: a GPU with its number, or the host.
            sides: Where it runs.
        """
        self._under_way: list[tuple[Any, Any]] = []  # events, and whose memory is used until then
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
        """How much it copies."""
        return sum(target.nbytes for target in self.made)

    def is_done(self) -> bool:
        """Whether the result is there already."""
        return all(event.query() for event, _ in self._under_way)

    def wait(self) -> Tree:
        """The result.

        On a GPU the current stream waits for it, and the host does not; what is on the host is
        there when this returns.
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
        """Let the streams whose memory takes part wait; then it may be freed in their order."""
        for event, program in self._under_way:
            program.wait_event(event)
        self._under_way = []
        self._on_gpus = []

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._settle()


_to_gpus, _to_host = SideStreams(), SideStreams()  # the bus goes both ways at once


def copy_async(tree: Tree, device: Any) -> Copy[Tree]:
    """Begin to copy a tree's tensors to a GPU, from one GPU to another, or back to the host.

    The program goes on meanwhile; `wait` on what this returns gives the copied tree, safe to use on
    the current stream and to keep. Copies read what the work queued so far leaves. Those on the
    host are page-locked. They are plain tensors, without autograd's history; tensors that are there
    already, and all that is no tensor, are the same objects.

    >>> copy = plimsoll.copy_async(batch, "cuda")  # doctest: +SKIP
    >>> batch = copy.wait()  # doctest: +SKIP

    Args:
        tree: Tensors in tuples, lists, dictionaries, dataclasses, and whatever else.
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
