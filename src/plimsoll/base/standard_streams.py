"""Standard streams that a shell has closed (`>&-`), or whose reader is gone (`| head`)."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def reserve_closed_descriptors() -> None:
    """Open the null device in the place of each descriptor from 0 to 2 that is closed.

    Otherwise the next file that is opened gets that number, and with it what the program or one of
    its libraries prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(number, True)


def prepare_standard_streams() -> None:
    """Let a command go on where a standard stream is closed, or standard error has no reader.

    Python prints to standard output what is for a standard error that is closed.
    """
    reserve_closed_descriptors()
    given = sys.stderr
    if given is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            _StandardError(2, "w", closefd=False),  # unbuffered, as python -u has it
            encoding=None if given is None else given.encoding,
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )


def has_reader(descriptor: int) -> bool:
    """Returns whether a pipe still has a reader; true for all that is no pipe."""
    asked = select.poll()
    asked.register(descriptor, 0)
    return not any(events & select.POLLERR for _, events in asked.poll(0))


def drop_output(descriptor: int) -> None:
    """Let a descriptor lead nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _StandardError(io.FileIO):
    """Drops its text once the reader is gone: the answer goes to standard output."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            drop_output(self.fileno())
            return memoryview(data).nbytes
