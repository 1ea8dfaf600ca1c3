"""The thread that publishes a process's counters.

The thread writes the counters a few times a second and answers requests for a snapshot. Its errors
never reach the program, and it never makes a context on a GPU. The thread is stopped while the
process forks, because a lock that the thread holds would stay locked in the child forever. A child
does not use its parent's GPUs, so it publishes counters only once it uses a GPU itself.

PLIMSOLL_PUBLISH=0 in the environment turns publishing off.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.standard_streams import reserve_closed_descriptors
from plimsoll.base.telemetry.counters import CountersFile, ProcessCounters, read_processes
from plimsoll.base.telemetry.folder import counters_path, private_folder, remove, socket_path
from plimsoll.base.telemetry.identity import pid_namespace, start_ticks
from plimsoll.base.telemetry.job import place_of_process
from plimsoll.base.telemetry.requests import SnapshotServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.base.telemetry.counter_source import CounterSource

INTERVAL_SECONDS = 0.25
_PATIENCE_SECONDS = 2.0
_log = logging.getLogger("plimsoll")


class Publisher:
    """Publishes the counters of one source of this process, from `start` to `stop`.

    Args:
        source: Reads the counters.
        snapshot: Makes a snapshot in PyTorch's format, with the history if the process records one.
        folder: The private folder for the files. By default, the publisher chooses the first of
            `folders` that can be used, and chooses again if that folder is deleted. A system may
            delete a user's runtime folder after the last login session.
        interval_seconds: The time between two writes.
    """

    def __init__(
        self,
        source: CounterSource,
        snapshot: Callable[[], dict[str, Any]],
        folder: Path | None = None,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._source = source
        self._snapshot = snapshot
        self._wanted = folder
        self._folder: Path | None = None  # the folder of the current files
        self._interval = interval_seconds
        self._pid = os.getpid()
        self._start_ticks = start_ticks(self._pid) or 0
        self._namespace = pid_namespace()
        self._program = _program()
        self._thread: threading.Thread | None = None
        self._file: CountersFile | None = None
        self._server: SnapshotServer | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self) -> None:
        """Starts the thread, or restarts it after `pause`."""
        with suppress(OSError):
            os.eventfd_read(self._wake)  # clears an earlier request to pause
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, name="plimsoll counters", daemon=True)
        self._thread.start()

    def pause(self) -> bool:
        """Ends the thread and keeps the files.

        Waits at most 2 seconds for the end. Returns whether the thread has ended.
        """
        if self._thread is None:
            return True
        if self._thread is threading.current_thread():
            return False  # a finalizer that runs on this thread calls fork
        with suppress(OSError):  # if the program closed `_wake`, the thread ends by itself
            os.eventfd_write(self._wake, 1)
        self._thread.join(_PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread for good and removes the files."""
        if self.pause():
            self.abandon()
        if self._folder is not None:
            remove(self._folder, self._pid)

    def abandon(self) -> None:
        """Closes the descriptors, but does not delete the files.

        A forked child calls this, and its parent still uses the files.
        """
        self._close()
        with suppress(OSError):
            os.close(self._wake)

    def write(self) -> None:
        """Writes the counters now, unless the process has not used a GPU yet.

        Raises:
            OSError: If the file cannot be written.
            InputError: If no folder can be used.
        """
        # The time is taken before the read, so that no counter is older than the heartbeat says.
        read_at = time.monotonic_ns()
        now = self._source.read()
        if not now.devices:
            return
        counters = ProcessCounters(
            pid=self._pid,
            start_ticks=self._start_ticks,
            namespace=self._namespace,
            heartbeat_ns=read_at,
            interval_ns=int(self._interval * 1e9),
            pinned_bytes=now.pinned_bytes,
            shared_total_bytes=now.shared_total_bytes,
            program=self._program,
            allocator=self._source.allocator,
            devices=now.devices,
            place=place_of_process(),
        )
        file = self._file or self._open()
        try:
            file.write(counters)
        except OSError:  # if the folder was deleted, the next write chooses a new folder
            self._close()
            raise

    def _open(self) -> CountersFile:
        reserve_closed_descriptors()
        self._folder = folder = self._wanted or private_folder()
        read_processes(only=folder)  # deletes the files of killed processes
        self._file = CountersFile(counters_path(folder, self._pid))
        try:
            self._server = SnapshotServer(socket_path(folder, self._pid), self._snapshot)
        except OSError as error:  # for example a path that is too long
            _log.debug("no snapshots on request: %s", error)
        return self._file

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._file = self._server = None

    def _run(self) -> None:
        while True:
            try:
                self.write()
            except Exception as error:  # no error may reach the program
                _log.debug("counters were not published: %r", error)
            try:
                if self._wait():
                    return
            except Exception as error:
                _log.debug("the publisher of counters ended: %r", error)
                return

    def _wait(self) -> bool:
        """Answers requests until the next write is due. Returns whether the thread should end."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._server is not None:
            poll.register(self._server, select.POLLIN)
        due = time.monotonic() + self._interval
        while (left := due - time.monotonic()) > 0:
            for file, _ in poll.poll(left * 1e3):
                if file == self._wake:
                    os.eventfd_read(self._wake)
                    return True
                if self._server is not None and not self._server.answer():
                    poll.unregister(self._server)  # ignores requests until the next write
        return False


_lock = threading.RLock()  # guards the variables below; held while the process forks
_source: CounterSource | None = None
_publisher: Publisher | None = None
_has_hooks = False


def publish(source: CounterSource, snapshot: Callable[[], dict[str, Any]]) -> None:
    """Starts the publisher of this process, unless one runs already.

    In either case, `source_of_process` returns `source` from now on. If the counters cannot be
    published, the program goes on without an error.

    Args:
        source: Reads the counters.
        snapshot: Makes a snapshot in PyTorch's format, with the history if the process records one.
    """
    global _source, _publisher
    with _lock:
        _source = source
        if _publisher is not None or os.environ.get("PLIMSOLL_PUBLISH") == "0":
            return
        try:
            publisher = Publisher(source, snapshot)
            _add_hooks()
            # multiprocessing runs a Finalize only in the process that made it, not in a child.
            Finalize(None, _stop, exitpriority=1)
            publisher.start()
            _publisher = publisher
        except Exception as error:
            _log.debug("counters are not published: %s", error)


def _stop() -> None:
    global _publisher
    publisher, _publisher = _publisher, None  # a fork after this line finds no publisher
    if publisher is not None:
        publisher.stop()


def source_of_process() -> CounterSource | None:
    """Returns the source of this process's counters, even if they are not published."""
    return _source


def _add_hooks() -> None:
    global _has_hooks
    if not _has_hooks:
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
        )
        _has_hooks = True


def _before_fork() -> None:
    # Holds the lock until after the fork, so that no other thread forks or starts the publisher.
    _lock.acquire()
    if _publisher is not None:
        _publisher.pause()


def _after_in_parent() -> None:
    with suppress(RuntimeError):  # no thread can start while the interpreter shuts down
        try:
            if _publisher is not None:
                _publisher.start()
        finally:
            _lock.release()


def _after_in_child() -> None:
    global _lock, _source, _publisher
    _lock = threading.RLock()
    publisher, _publisher, _source = _publisher, None, None
    if publisher is not None:
        publisher.abandon()


def _program() -> str:
    """Returns the script's name and its arguments, separated by spaces."""
    script, *arguments = map(str, getattr(sys, "argv", None) or [""])
    return " ".join([Path(script).name or "python", *arguments])
