"""Explains an out-of-memory error when it ends a program, after the traceback.

The program's own `sys.excepthook` prints the traceback first. When plimsoll's hook then runs, the
traceback still holds the tensors that filled the memory, and PyTorch's history contains the failed
request. If the explanation fails, one line on stderr says so.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError, OutOfMemoryError
from plimsoll.base.files import NewFile
from plimsoll.base.printable import join_lines, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_SEARCH_EVENTS = 60_000_000  # to replay this many takes about ten seconds


def explain_oom(
    folder: str | os.PathLike[str] = ".", *, max_entries: int = 1_000_000, stacks: bool = True
) -> OomHook:
    """Explains every GPU out-of-memory error that ends the program or a thread.

    PyTorch records its memory history from this call on, so call it at the start of the program. On
    an out-of-memory error plimsoll writes two files to `folder`: the explanation as text, and the
    history as a snapshot for `plimsoll view`. This works on simulated GPUs too.

    In a notebook errors do not end the program, so use the returned hook as a context manager:

    >>> with plimsoll.explain_oom():  # doctest: +SKIP
    ...     train()

    Args:
        folder: The folder for the files.
        max_entries: The number of events that the history keeps.
        stacks: Whether the history keeps call stacks, to name source lines.

    Returns:
        Returns the hook. Its `remove()` stops the explanations.
    """
    hook = OomHook(folder)
    _record_history(max_entries, stacks=stacks)
    hook.install()
    return hook


class OomHook:
    """Explains out-of-memory errors; made by `explain_oom`.

    Attributes:
        written: The files of the explanations so far.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        self.written: list[Path] = []
        self._folder = Path(folder)
        self._seen: BaseException | None = None
        self._restore: Callable[[], None] | None = None

    def install(self) -> None:
        """Registers this hook for errors that end the program or a thread."""
        for_program, for_threads = sys.excepthook, threading.excepthook

        def in_program(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            for_program(kind, error, traceback)
            self.explain(error)

        def in_thread(arguments: threading.ExceptHookArgs, /) -> None:
            for_threads(arguments)
            if arguments.exc_value is not None:
                self.explain(arguments.exc_value)

        def restore() -> None:
            # A hook that was installed after ours must stay. So the earlier hook is put back only
            # if ours is still the current one.
            if sys.excepthook is in_program:
                sys.excepthook = for_program
            if threading.excepthook is in_thread:
                threading.excepthook = for_threads

        sys.excepthook, threading.excepthook = in_program, in_thread
        self._restore = restore

    def remove(self) -> None:
        """Stops explaining errors. PyTorch continues to record its history."""
        if self._restore is not None:
            self._restore()
            self._restore = None

    def __enter__(self) -> OomHook:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.explain(error)
        self.remove()

    def explain(self, error: BaseException) -> Path | None:
        """Writes the explanation of an error, if a GPU ran out of memory.

        Call this for errors that the program catches. plimsoll does not explain those by itself: an
        explanation takes seconds, and many programs catch such errors routinely.

        Returns:
            Returns the file of the explanation, or None if there is none. Raises nothing.
        """
        cause = _out_of_memory(error)
        if self._restore is None or cause is None or cause is self._seen:
            return None
        self._seen = cause
        try:
            path = self._write(cause)
        except BaseException as problem:
            reason = printable(str(problem)) or type(problem).__name__
            print(f"plimsoll: the error above could not be explained: {reason}", file=sys.stderr)
            return None
        self.written.append(path)
        print(
            join_lines(
                [
                    f"plimsoll: why there was no memory: {path}",
                    f"next: {shlex.join(['plimsoll', 'view', str(path.with_suffix('.pickle'))])}",
                ]
            ),
            file=sys.stderr,
        )
        return path

    def _write(self, error: BaseException) -> Path:
        from plimsoll.explanation.explain import explain
        from plimsoll.recordings.snapshot_reader import read_snapshot

        content = _snapshot()
        path = self._unused_name()
        with NewFile(path.with_suffix(".pickle")) as file:
            file.write(content)
        recording = read_snapshot(content, str(path.with_suffix(".pickle")))
        device = _device(recording.devices)
        found = explain(recording, device=device, search_events=_SEARCH_EVENTS, error=str(error))
        with NewFile(path) as file:
            file.write(f"{error}\n\n{found}\n".encode())
        return path

    def _unused_name(self) -> Path:
        for number in range(1, 1000):
            name = f"plimsoll-oom-{os.getpid()}" + (f"-{number}" if number > 1 else "")
            path = self._folder / f"{name}.txt"
            if not path.exists() and not path.with_suffix(".pickle").exists():
                return path
        raise InputError(f"{self._folder} has too many explanations already")


def _out_of_memory(error: BaseException) -> BaseException | None:
    """Returns the first GPU out-of-memory error among an error and its causes, or None."""
    torch = sys.modules.get("torch")
    kinds: list[type[BaseException]] = [OutOfMemoryError]
    if torch is not None:
        kinds.append(torch.OutOfMemoryError)
    chain: BaseException | None = error
    seen: set[int] = set()
    while chain is not None and id(chain) not in seen:
        if isinstance(chain, tuple(kinds)):
            return chain
        seen.add(id(chain))
        chain = chain.__cause__ or chain.__context__
    return None


def _record_history(max_entries: int, *, stacks: bool) -> None:
    import torch

    if not torch.cuda.is_available():
        return  # without a GPU there is no history to record
    torch.cuda.memory._record_memory_history(
        "all", context="all" if stacks else None, stacks="python", max_entries=max_entries
    )


def _snapshot() -> bytes:
    import pickle

    from plimsoll.engine.current import allocator_name
    from plimsoll.offloading.tiers.reports import memory_snapshot, torch_snapshot

    # With PyTorch's own allocator, `torch_snapshot` takes PyTorch's snapshot. It adds what that
    # snapshot lacks: a description of the cards, and the labels of tensors.
    is_ours = allocator_name() is not None
    return pickle.dumps(memory_snapshot() if is_ours else torch_snapshot())


def _device(devices: list[Any]) -> int | None:
    """Returns the device whose request failed last."""
    from plimsoll.recordings.events import Action

    failed = [
        (int(batch.time_us[batch.action == Action.OOM].max()), trace.device)
        for trace in devices
        for batch in trace.batches()
        if (batch.action == Action.OOM).any()
    ]
    return max(failed)[1] if failed else None
