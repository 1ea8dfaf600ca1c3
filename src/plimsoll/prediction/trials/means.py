"""Implements each kind of trial: how real files are protected from a program's writes.

The *holder* is the process that plimsoll starts for a trial. It starts the program, waits until
the program ends, and lists what the program wrote.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plimsoll.prediction.trials import kernel, scratch_layer
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.namespaces import enter_namespaces
from plimsoll.prediction.trials.overlay import Overlay, check_possible
from plimsoll.prediction.trials.program_processes import MARK
from plimsoll.prediction.trials.wall import Refused, Wall
from plimsoll.prediction.trials.written import Written, changed_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.prediction.trials.outcome import Settings


class Means(Protocol):
    """One way to protect real files from a program's writes.

    Attributes:
        environment: The environment variables that the program must get.
        listener: A file descriptor, or None. When it is readable, the holder calls `listen`.
    """

    environment: dict[str, str]
    listener: int | None

    def prepare(self) -> None:
        """Prepares the isolation. The holder calls this method, then starts the program's process.

        Raises:
            OSError: If the machine does not offer this means.
            InputError: If the trial's folder is not suitable.
        """

    def enter(self, to_holder: socket.socket) -> None:
        """Isolates the calling process. The program's process calls it before the program runs.

        Raises:
            OSError: If the machine does not offer this means.
        """

    def begun(self, from_program: socket.socket) -> None:
        """Does the holder's part of the isolation, while the program's process runs `enter`."""

    def listen(self) -> None:
        """Reads and handles a message from `listener`."""

    def written(self) -> list[Written]:
        """Returns the files that the program wrote. The holder calls it after the program's end."""

    def refused(self) -> list[Refused]:
        """Returns the writes that the kernel refused."""

    def release(self) -> None:
        """Releases mounts that would prevent the removal of the trial's folder."""


class _Silent:
    """A base class for those `Means` that need nothing from the holder while the program runs."""

    listener: int | None = None

    def begun(self, from_program: socket.socket) -> None:
        """Does nothing."""

    def listen(self) -> None:
        """Does nothing."""

    def refused(self) -> list[Refused]:
        """Returns an empty list: writes are redirected, not refused."""
        return []

    def release(self) -> None:
        """Does nothing."""


class ByOverlay(_Silent):
    """Protects real files by overlay file systems over the machine's folders; see `overlay`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._overlay: Overlay | None = None
        self.environment = {MARK: settings.folder}

    def prepare(self) -> None:
        """Checks that overlays work, enters namespaces, and makes the folders of the overlay."""
        folder, free = Path(self._settings.folder), map(Path, self._settings.free)
        check_possible(folder)
        enter_namespaces(with_network=self._settings.with_network)
        self._overlay = Overlay(folder, list(free))
        self._overlay.make()

    def enter(self, _to_holder: socket.socket) -> None:
        """Changes this process's root to the trial's root; the holder keeps the real root."""
        assert self._overlay is not None
        kernel.unshare(kernel.NEW_MOUNTS)
        self._overlay.enter([Path.cwd()])

    def written(self) -> list[Written]:
        """Lists the files in the overlays' upper folders, where the kernel puts what is written."""
        assert self._overlay is not None
        return changed_in(self._overlay.layers, self._overlay.root)

    def release(self) -> None:
        """Unmounts the trial's tmpfs file systems."""
        assert self._overlay is not None
        self._overlay.unmake()


class ByLayer(_Silent):
    """The scratch layer: a library that redirects the program's writes."""

    def __init__(self, settings: Settings) -> None:
        self._folder = Path(settings.folder)
        self.environment = scratch_layer.environment(self._folder, list(map(Path, settings.free)))

    def prepare(self) -> None:
        """Checks that the scratch layer can use the trial's folder."""
        scratch_layer.check_folder(self._folder)

    def enter(self, to_holder: socket.socket) -> None:
        """Does nothing: the dynamic linker loads the library with the program."""

    def written(self) -> list[Written]:
        """Returns the files that the scratch layer redirected."""
        return scratch_layer.written(self._folder)


class ByWall(ByLayer):
    """The scratch layer, and a wall by which the kernel refuses writes that bypass the layer."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        password = secrets.randbits(64) or 1
        free = list(map(Path, settings.free))
        self.environment = scratch_layer.environment(self._folder, free, password)
        library = scratch_layer.library(self._folder)
        self._wall = Wall(library, [self._folder, *free, *_writable_anyway()], password)
        self._refused: Counter[tuple[str, str]] = Counter()

    def prepare(self) -> None:
        """Checks that the trial's folder is suitable and that the kernel supports a wall."""
        super().prepare()
        self._wall.check_possible()

    def enter(self, to_holder: socket.socket) -> None:
        """Sets up the wall around this process.

        Sends the holder the file descriptor by which the kernel asks whether to allow a write.
        """
        listener = self._wall.raise_around_this_process()
        socket.send_fds(to_holder, [b"-"], [listener])
        os.close(listener)

    def begun(self, from_program: socket.socket) -> None:
        """Receives the listener that `enter` sends. If `enter` failed, `listener` stays None."""
        _, files, _, _ = socket.recv_fds(from_program, 1, 1, socket.MSG_PEEK)
        if files:
            from_program.recv(1)
            self.listener = files[0]

    def listen(self) -> None:
        """Answers a notification from the kernel, and counts the write if it is refused."""
        if self.listener is not None and (refused := self._wall.answer(self.listener)) is not None:
            self._refused[refused] += 1

    def refused(self) -> list[Refused]:
        """Returns the refused writes, the most frequent first."""
        return [Refused(path, program, count)
                for (path, program), count in self._refused.most_common()]  # fmt: skip


_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue")

STRONGEST_FIRST: dict[Kind, Callable[[Settings], Means]] = {
    Kind.OVERLAY: ByOverlay,
    Kind.WALL: ByWall,
    Kind.LAYER: ByLayer,
}


def _writable_anyway() -> list[Path]:
    """Returns the real files that a program behind the wall may write to.

    They are devices, shared memory, /proc, and the files behind standard input, output and error.
    """
    devices = [Path("/dev", name) for name in _DEVICES]
    nvidia = Path("/dev").glob("nvidia*")
    outputs = [Path(os.readlink(f"/proc/self/fd/{number}")) for number in (0, 1, 2)]  # noqa: PTH115
    return [*devices, *nvidia, Path("/proc"), *(place for place in outputs if place.is_file())]
