"""Makes and removes the folders of trials. Also removes what killed processes left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.prediction.trials.program_processes import end_marked
from plimsoll.prediction.trials.shared_memory import remove_shared_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "plimsoll-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_OWNER = "owner"
"""The file in a trial's folder that each process keeps locked while it needs the folder."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a new folder, and removes it at the end of the context even if it is still in use."""
    _sweep_once(tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    place = Path(folder.name).resolve()
    lock = own(place)
    try:
        yield place
    finally:
        with interrupts_held():
            folder.cleanup()
            os.close(lock)


def folder_of_this_process() -> Path | None:
    """Makes a folder that this process removes when it ends; None if no file can be written.

    If the process is killed, the next trial removes the folder. Processes that this one forks do
    not remove it.
    """
    try:
        _sweep_once(tempfile.gettempdir())
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
    except OSError:
        return None
    try:
        own(folder)
    except OSError:  # `sweep` would leave the folder, which has no owner
        shutil.rmtree(folder, ignore_errors=True)
        return None
    # A negative priority comes after `multiprocessing` has waited for its children.
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-1)
    return folder


def own(folder: Path) -> int:
    """Prevents `sweep` from removing a trial's folder until the returned descriptor is closed.

    Raises:
        OSError: If the file system is full, or the folder does not exist.
    """
    import fcntl  # missing on Windows

    owner, unfinished = folder / _OWNER, folder / f"{_OWNER}.{os.getpid()}"
    is_first = not owner.exists()  # later owners lock the file that the first one made
    lock = os.open(unfinished if is_first else owner, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if is_first:
        unfinished.rename(owner)  # the file is locked already, so a sweep never finds it unlocked
    return lock


@cache
def _sweep_once(temporary: str) -> None:
    sweep(Path(temporary))


def sweep(temporary: Path) -> None:
    """Removes this user's trial folders whose lock no process holds. `own` takes this lock.

    Also kills the processes that the trials of these folders left.
    """
    import fcntl  # missing on Windows

    for place in _folders(temporary):
        with suppress(OSError):
            lock = os.open(place / _OWNER, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_marked(place)
                remove_shared_memory(place)
                shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(lock)


def _folders(temporary: Path) -> Iterator[Path]:
    """Yields the trial folders of this user."""
    with suppress(OSError):
        for entry in os.scandir(temporary):
            is_folder = _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            if is_folder and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                yield Path(entry.path).resolve()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C while the context lasts, for work that must not stop half-way.

    It replaces Python's handler. Blocking the signal is not enough: a thread blocks signals only
    for itself, so another thread would get the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt in the main thread only
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        for number in came[:1]:
            signal.raise_signal(number)
