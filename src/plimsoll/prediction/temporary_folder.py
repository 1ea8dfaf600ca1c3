"""Folders that are gone in the end, also where an interrupt comes while they are removed."""

from __future__ import annotations

import signal
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder, which goes when the context ends, whatever a script leaves running in it."""
    folder = tempfile.TemporaryDirectory(prefix="plimsoll-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name).resolve()
    finally:
        with interrupts_held():
            folder.cleanup()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """For as long as the context lasts, interrupts wait: for what must not be left half done.

    By Python's handler, as a mask of signals is one thread's, and any other would take them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts are the main thread's
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        for number in came[:1]:
            signal.raise_signal(number)
