"""Snapshots on request: a program that runs plimsoll sends its user a snapshot of GPU memory.

The process listens on a Unix socket, in the folder where it publishes its counters. It answers only
its own user and root; the kernel tells it which user has connected. The answer is a line of JSON,
`{"size": N}` or `{"error": "..."}`. If the line has a size, N bytes follow: a pickle in PyTorch's
format, which a reader must treat as untrusted.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.folder import folders, is_private, socket_path
from plimsoll.base.telemetry.identity import start_ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_REQUEST = b"snapshot\n"
_CREDENTIALS = struct.Struct("3i")
_ASK_SECONDS = 1.0
_SEND_SECONDS = 120.0
_DYING_SECONDS = 1.0  # a dying process ends within this time after its sockets close
_MOST_HEADER_BYTES = 4096
_PIECE = 1 << 20
_NOBODY_THERE = (errno.ENOENT, errno.ECONNREFUSED, None)  # errno is None if the path is too long


class SnapshotServer:
    """The socket on which a process gets requests for a snapshot.

    Call `answer` when the socket is readable.

    Args:
        path: The path of the socket.
        take: Returns the snapshot.

    Raises:
        OSError: If the socket cannot be made.
    """

    def __init__(self, path: Path, take: Callable[[], dict[str, Any]]) -> None:
        self._path = path
        self._take = take
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            path.chmod(0o600)
            self._socket.listen(4)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Returns the socket's file descriptor, which `poll` needs."""
        return self._socket.fileno()

    def answer(self) -> bool:
        """Answers one client; an error goes to that client only.

        Returns False if no connection could be accepted, for example because this process cannot
        open more files.
        """
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return False
        with connection, suppress(OSError):
            self._serve(connection)
        return True

    def _serve(self, connection: socket.socket) -> None:
        if _peer(connection)[1] not in (os.geteuid(), 0):
            return
        connection.settimeout(_ASK_SECONDS)
        if connection.recv(len(_REQUEST)) != _REQUEST:
            return
        try:
            content = pickle.dumps(self._take())
        except Exception as error:  # any error is sent to the client
            answer: dict[str, Any] = {"error": str(error)[:1000] or type(error).__name__}
            content = b""
        else:
            answer = {"size": len(content)}
        connection.settimeout(_SEND_SECONDS)
        # Without MSG_NOSIGNAL, SIGPIPE would kill a program that has restored SIGPIPE's default.
        connection.sendall(json.dumps(answer).encode() + b"\n", socket.MSG_NOSIGNAL)
        connection.sendall(content, socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Stops listening; the socket's file is not deleted."""
        with suppress(OSError):  # the program may have closed all descriptors
            self._socket.close()


def request_snapshot(pid: int, *, timeout_seconds: float = 120.0) -> bytes:
    """Asks a running process for a snapshot of its memory.

    >>> content = plimsoll.request_snapshot(4711)  # doctest: +SKIP
    >>> Path("process.pickle").write_bytes(content)  # doctest: +SKIP

    Args:
        pid: The process id.
        timeout_seconds: The longest wait for an answer.

    Returns:
        A pickle as `torch.cuda.memory._dump_snapshot` writes it, with the history if the process
        records one. `plimsoll.recordings` reads it without executing anything.

    Raises:
        InputError: If there is no such process, or if it belongs to another user, does not run
            plimsoll, cannot make a snapshot, ends before it answers, or answers too late.
    """
    deadline = time.monotonic() + timeout_seconds
    with _connect(pid, timeout_seconds) as connection:
        try:
            connection.sendall(_REQUEST, socket.MSG_NOSIGNAL)
            return _receive(connection, pid, deadline)
        except TimeoutError:
            raise InputError(
                f"process {pid} did not answer within {timeout_seconds:g} s; it may be stopped, or "
                "busy outside of Python"
            ) from None
        except OSError as error:
            raise InputError(f"process {pid} gave no answer: {_how_it_ended(pid, error)}") from None


def _connect(pid: int, timeout_seconds: float) -> socket.socket:
    owner = _owner(pid)
    if owner is None:
        raise InputError(f"there is no process {pid}")
    if os.geteuid() not in (owner, 0):
        raise InputError(f"process {pid} is another user's; only its own user can ask it")
    for folder in filter(is_private, folders()):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_seconds)
        try:
            connection.connect(str(socket_path(folder, pid)))
            if _peer(connection)[0] == pid:
                return connection
        except (TimeoutError, BlockingIOError):
            connection.close()
            raise InputError(f"process {pid} does not take requests; it may be stopped") from None
        except OSError as error:
            if error.errno not in _NOBODY_THERE:
                connection.close()
                raise InputError(f"process {pid} cannot be asked: {error.strerror}") from None
        connection.close()
    raise InputError(
        f"process {pid} does not run plimsoll, or has not used a GPU yet; start programs with "
        "`plimsoll run`"
    )


def _owner(pid: int) -> int | None:
    if pid <= 0 or start_ticks(pid) is None:
        return None
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Returns the process id and the user id of the process at the other end."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(packed)
    return pid, user


def _receive(connection: socket.socket, pid: int, deadline: float) -> bytes:
    received = bytearray()
    while b"\n" not in received:
        if len(received) > _MOST_HEADER_BYTES:
            raise _no_answer(pid)
        received += _more(connection, pid, deadline)
    line, _, rest = bytes(received).partition(b"\n")
    size = _announced_size(line, pid)
    content = bytearray(rest)
    while len(content) < size:
        content += _more(connection, pid, deadline)
    return bytes(content)


def _more(connection: socket.socket, pid: int, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    piece = connection.recv(_PIECE)
    if not piece:
        raise InputError(f"process {pid} gave no answer: {_how_it_ended(pid, None)}")
    return piece


def _announced_size(line: bytes, pid: int) -> int:
    try:
        answer = json.loads(line)
    except ValueError:
        raise _no_answer(pid) from None
    if not isinstance(answer, dict):
        raise _no_answer(pid)
    if isinstance(answer.get("error"), str):
        reason = " ".join(answer["error"].split())
        raise InputError(f"process {pid} could not make a snapshot: {reason}")
    size = answer.get("size")
    if not isinstance(size, int) or size < 0:
        raise _no_answer(pid)
    return size


def _no_answer(pid: int) -> InputError:
    return InputError(f"process {pid} gave an answer that cannot be read")


def _how_it_ended(pid: int, error: OSError | None) -> str:
    ends = time.monotonic() + _DYING_SECONDS
    while start_ticks(pid) is not None and time.monotonic() < ends:
        time.sleep(0.01)
    if start_ticks(pid) is None:
        return "it died while it answered"
    return "it closed the connection" if error is None else str(error.strerror)
