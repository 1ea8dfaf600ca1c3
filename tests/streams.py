"""Finds races between CUDA streams.

A race is an access to memory that does not wait for an earlier access to the same memory, where at
least one of the two accesses is a write. The detector is a dispatch mode for a process with
simulated GPUs. Each stream, and the host, has a vector clock. The clock says how much work of each
other stream must be done before this stream's next work begins. Events carry clocks from stream to
stream. For each range of memory, the detector keeps the last write and all later accesses. Each new
access is compared with these, whichever tensor it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Clock = dict[Any, int]
HOST = "the host"
_NO_ACCESS = {"empty", "empty_strided", "empty_like", "set_", "record_stream", "detach", "alias"}


@dataclass(frozen=True)
class Access:
    """One use of memory."""

    begin: int
    end: int
    writes: bool
    who: Any
    time: int
    what: str


class RaceError(AssertionError):
    """Two unordered uses of the same memory."""


class Streams(TorchDispatchMode):  # type: ignore[misc]
    """Observes all operations and events while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._clocks: dict[Any, Clock] = {HOST: {HOST: 0}}
        self._accesses: list[Access] = []
        self._patched: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Streams:
        event, stream = torch.cuda.Event, torch.cuda.Stream

        def recorded(self_: Any, on: Any = None) -> None:
            on = torch.cuda.current_stream() if on is None else on
            self._originals[event, "record"](self_, on)
            self_.clock = dict(self._clock(key_of(on)))

        def waited(self_: Any, on: Any = None) -> None:
            on = torch.cuda.current_stream() if on is None else on
            self._originals[event, "wait"](self_, on)
            self._learn(key_of(on), getattr(self_, "clock", {}))

        def synchronized(self_: Any) -> None:
            self._originals[event, "synchronize"](self_)
            self._learn(HOST, getattr(self_, "clock", {}))

        def queried(self_: Any) -> bool:
            is_done = bool(self._originals[event, "query"](self_))
            if is_done:
                self._learn(HOST, getattr(self_, "clock", {}))
            return is_done

        def drained(self_: Any) -> None:
            self._originals[stream, "synchronize"](self_)
            self._learn(HOST, self._clock(key_of(self_)))

        def all_drained(*_: Any) -> None:
            self._originals[torch.cuda, "synchronize"]()
            for clock in list(self._clocks.values()):
                self._learn(HOST, clock)

        patches = [
            (event, "record", recorded),
            (event, "wait", waited),
            (event, "synchronize", synchronized),
            (event, "query", queried),
            (stream, "synchronize", drained),
            (torch.cuda, "synchronize", all_drained),
        ]
        self._originals = {(owner, name): getattr(owner, name) for owner, name, _ in patches}
        for owner, name, function in patches:
            setattr(owner, name, function)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for (owner, name), function in self._originals.items():
            setattr(owner, name, function)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in _NO_ACCESS or function.is_view:
            return result
        written: list[Any] = []
        given: list[Any] = []
        for argument, value in zip(function._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            (written if is_written else given).extend(tensors(value))
        given += tensors(kwargs)
        written += [t for t in tensors(result) if not any(t is w for w in written)]
        self._use(name, given, written, blocks=name == "copy_" and not (*args, False)[2])
        return result

    def _use(self, name: str, given: list[Any], written: list[Any], *, blocks: bool) -> None:
        on_gpu = [t for t in (*written, *given) if t.is_cuda]
        who = key_of(torch.cuda.current_stream(on_gpu[0].device)) if on_gpu else HOST
        clock = self._clock(who)
        others = {key_of(torch.cuda.current_stream(t.device)) for t in on_gpu}
        for other in others:  # a copy between GPUs waits for both streams, and both wait for it
            self._learn(who, self._clock(other))
        if who != HOST:
            self._clocks[HOST][HOST] += 1
            self._learn(who, self._clocks[HOST])
        clock[who] += 1
        for tensor, writes in (*((t, False) for t in given), *((t, True) for t in written)):
            if tensor.is_cuda or tensor.is_pinned():
                storage = tensor.untyped_storage()
                begin = storage.data_ptr() if tensor.is_cuda else tensor.data_ptr()
                size = storage.nbytes() if tensor.is_cuda else tensor.nbytes
                self._access(Access(begin, begin + size, writes, who, clock[who], name))
        for waiting in (*others, HOST) if blocks else others:
            self._learn(waiting, clock)

    def _access(self, new: Access) -> None:
        clock = self._clocks[new.who]
        kept = []
        for old in self._accesses:
            if old.end <= new.begin or new.end <= old.begin:
                kept.append(old)
                continue
            if (old.writes or new.writes) and old.time > clock.get(old.who, 0):
                raise RaceError(f"{new.what} on {new.who} before {old.what} on {old.who} is over")
            if not new.writes or old.begin < new.begin or new.end < old.end:
                kept.append(old)
        self._accesses = [*kept, new]

    def _clock(self, who: Any) -> Clock:
        return self._clocks.setdefault(who, {who: 0})

    def _learn(self, who: Any, known: Clock) -> None:
        clock = self._clock(who)
        for other, time in known.items():
            clock[other] = max(clock.get(other, 0), time)


def key_of(stream: Any) -> tuple[int, int]:
    """Returns a key of a stream."""
    return stream.device.index, stream.stream_id


def tensors(tree: Any) -> list[Any]:
    """Returns all tensors with memory among an operation's inputs or results."""
    found = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [t for t in found if t.device.type != "meta" and t.numel() > 0]
