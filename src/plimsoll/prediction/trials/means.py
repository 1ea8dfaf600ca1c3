"""The means by which a holder keeps a program apart, by kind."""

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
    """A means to keep a program apart.

    Attributes:
        environment: The variables that the program needs for it.
        listener: A file to poll, for `listen`; None without one.
    """

    environment: dict[str, str]
    listener: int | None

    def prepare(self) -> None:
        """Prepare, in the holder, before the program's process exists.

        Raises:
            OSError: If the machine does not offer it.
            InputError: If the trial's folder is not suitable.
        """

    def enter(self, to_holder: socket.socket) -> None:
        """Enter, in the program's process, before the program runs.

        Raises:
            OSError: If the machine does not offer it.
        """

    def begun(self, from_program: socket.socket) -> None:
        """Continue, in the holder, while the program's process enters."""

    def listen(self) -> None:
        """Read what is available from `listener`."""

    def written(self) -> list[Written]:
        """List what the program wrote, after its end."""

    def refused(self) -> list[Refused]:
        """List the changes that the kernel refused."""

    def release(self) -> None:
        """Release what keeps the trial's folder from being removed."""


class _Silent:
    """Means that receive nothing while the program runs."""

    listener: int | None = None

    def begun(self, from_program: socket.socket) -> None:
        """Does nothing."""

    def listen(self) -> None:
        """Does nothing."""

    def refused(self) -> list[Refused]:
        """Returns nothing: writes are redirected, not refused."""
        return []

    def release(self) -> None:
        """Does nothing."""


class ByOverlay(_Silent):
    """See `overlay`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._overlay: Overlay | None = None
        self.environment = {MARK: settings.folder}

    def prepare(self) -> None:
        """Check that overlays work, and enter namespaces."""
        folder, free = Path(self._settings.folder), map(Path, self._settings.free)
        check_possible(folder)
        enter_namespaces(with_network=self._settings.with_network)
        self._overlay = Overlay(folder, list(free))
        self._overlay.make()

    def enter(self, _to_holder: socket.socket) -> None:
        """Change to the new root; the holder keeps the real one."""
        assert self._overlay is not None
        kernel.unshare(kernel.NEW_MOUNTS)
        self._overlay.enter([Path.cwd()])

    def written(self) -> list[Written]:
        """Lists the files of the upper folders."""
        assert self._overlay is not None
        return changed_in(self._overlay.layers, self._overlay.root)

    def release(self) -> None:
        """Release the file systems in memory."""
        assert self._overlay is not None
        self._overlay.unmake()


class ByLayer(_Silent):
    """The scratch layer alone."""

    def __init__(self, settings: Settings) -> None:
        self._folder = Path(settings.folder)
        self.environment = scratch_layer.environment(self._folder, list(map(Path, settings.free)))

    def prepare(self) -> None:
        """Check that the folder is suitable."""
        scratch_layer.check_folder(self._folder)

    def enter(self, to_holder: socket.socket) -> None:
        """Does nothing: the library is loaded with the program."""

    def written(self) -> list[Written]:
        """Lists the files of the layer."""
        return scratch_layer.written(self._folder)


class ByWall(ByLayer):
    """The scratch layer with the wall around it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        password = secrets.randbits(64) or 1
        free = list(map(Path, settings.free))
        self.environment = scratch_layer.environment(self._folder, free, password)
        library = scratch_layer.library(self._folder)
        self._wall = Wall(library, [self._folder, *free, *_writable_anyway()], password)
        self._refused: Counter[tuple[str, str]] = Counter()

    def prepare(self) -> None:
        """Check that the kernel supports a wall."""
        super().prepare()
        self._wall.check_possible()

    def enter(self, to_holder: socket.socket) -> None:
        """Raise the wall, and send the kernel's notification file to the holder."""
        listener = self._wall.raise_around_this_process()
        socket.send_fds(to_holder, [b"-"], [listener])
        os.close(listener)

    def begun(self, from_program: socket.socket) -> None:
        """Receive that file; without it, the program's process reports the reason."""
        _, files, _, _ = socket.recv_fds(from_program, 1, 1, socket.MSG_PEEK)
        if files:
            from_program.recv(1)
            self.listener = files[0]

    def listen(self) -> None:
        """Answer a notification of the kernel."""
        if self.listener is not None and (refused := self._wall.answer(self.listener)) is not None:
            self._refused[refused] += 1

    def refused(self) -> list[Refused]:
        """Returns the refused changes, the most frequent first."""
        return [Refused(path, program, count)
                for (path, program), count in self._refused.most_common()]  # fmt: skip


_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue")

STRONGEST_FIRST: dict[Kind, Callable[[Settings], Means]] = {
    Kind.OVERLAY: ByOverlay,
    Kind.WALL: ByWall,
    Kind.LAYER: ByLayer,
}


def _writable_anyway() -> list[Path]:
    """Returns devices, shared memory, processes, and the files of the program's output."""
    devices = [Path("/dev", name) for name in _DEVICES]
    nvidia = Path("/dev").glob("nvidia*")
    outputs = [Path(os.readlink(f"/proc/self/fd/{number}")) for number in (0, 1, 2)]  # noqa: PTH115
    return [*devices, *nvidia, Path("/proc"), *(place for place in outputs if place.is_file())]
