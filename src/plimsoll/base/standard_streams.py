"""Handles standard streams that a shell has closed (`>&-`) or whose reader has ended (`| head`)."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def reserve_closed_descriptors() -> None:
    """Open /dev/null for each descriptor from 0 to 2 that is closed.

    Otherwise the next file that is opened would get that descriptor, and the output of the program
    or one of its libraries would go to that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open returns the lowest free descriptor, which is this one
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)


def prepare_standard_streams() -> None:
    """Let a command continue if a standard stream is closed, or standard error has no reader.

    Python would print text for a closed standard error to standard output.
    """
    reserve_closed_descriptors()
    given = sys.stderr
    if given is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            _StandardError(2, "w", closefd=False),  # unbuffered, as with python -u
            encoding=None if given is None else given.encoding,
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )


def has_reader(descriptor: int) -> bool:
    """Returns whether a pipe still has a reader; true for every other kind of file."""
    asked = select.poll()
    asked.register(descriptor, 0)
    return not any(events & select.POLLERR for _, events in asked.poll(0))


def drop_output(descriptor: int) -> None:
    """Redirect a descriptor to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _StandardError(io.FileIO):
    """Drops its text once the reader has ended; the answer still goes to standard output."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            drop_output(self.fileno())
            return memoryview(data).nbytes
