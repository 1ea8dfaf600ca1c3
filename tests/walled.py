"""Runs programs behind the wall, which refuses writes to real files; collects refused writes.

preload/wall.h describes the wall.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plimsoll import _core

PASS = 0x0123456789ABCDEF
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
_TEXT_BYTES = 2 * 4096


class Ended(NamedTuple):
    status: int
    output: str
    errors: str
    refused: list[tuple[str, str]]
    """For each refused system call: the path that it would change, and the calling program."""


def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(_core.__file__).with_name("libplimsoll_scratch.so")))


def is_wall_possible() -> bool:
    return bool(library().plimsoll_wall_is_possible() == 0)


def run_walled(
    command: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    writable: Sequence[Path],
    user: int | None = None,
    seconds: float = 120,
) -> Ended:
    """Runs a program, as `user` if one is given.

    The program can write only to `writable`, /proc, and devices such as /dev/null.
    """
    wall = _Wall(writable)
    ours, its = socket.socketpair()
    with (
        tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors, ours, its,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=errors, preexec_fn=lambda: wall.raise_and_send(its),
            user=user, group=user, extra_groups=None if user is None else [],
        ) as process,
    ):  # fmt: skip
        _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        refused = wall.answer(listener, process, seconds)
        output.seek(0)
        errors.seek(0)
        return Ended(process.returncode, output.read(), errors.read(), refused)


class _Wall:
    def __init__(self, writable: Sequence[Path]) -> None:
        paths = [*(Path("/dev") / name for name in DEVICES), Path("/proc"), *writable]
        self._library = library()
        self._paths = (ctypes.c_char_p * len(paths))(*map(os.fsencode, paths))

    def raise_and_send(self, to: socket.socket) -> None:
        listener = self._library.plimsoll_wall_raise(
            self._paths, len(self._paths), ctypes.c_ulonglong(PASS)
        )
        if listener < 0:
            raise OSError(-listener, os.strerror(-listener))
        socket.send_fds(to, [b"!"], [listener])

    def answer(
        self, listener: int, process: subprocess.Popen[bytes], seconds: float
    ) -> list[tuple[str, str]]:
        refused = []
        ended = os.pidfd_open(process.pid)
        waits = select.poll()
        waits.register(listener, select.POLLIN)
        waits.register(ended, select.POLLIN)
        while ready := dict(waits.poll(seconds * 1000)):
            if ready.get(listener, 0) & select.POLLIN:
                refused += self._answer_one(listener)
            elif ended in ready or listener in ready:
                break
        else:
            process.kill()
        os.close(listener)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        os.close(ended)
        return refused

    def _answer_one(self, listener: int) -> list[tuple[str, str]]:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        answer = self._library.plimsoll_wall_answer(
            listener, self._paths, len(self._paths), text, len(text)
        )
        if answer != 1:
            return []
        path, _, program = os.fsdecode(text.value).rpartition("\n")
        return [(path, program)]
