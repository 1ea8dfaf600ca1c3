"""Copes with standard streams that are closed (`>&-`) or have lost their reader (`| head`)."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def reserve_closed_descriptors() -> None:
    """Opens /dev/null as each of the descriptors 0 to 2 that is closed.

    Otherwise the next file that the process opens would get that descriptor. The output of the
    program and its libraries would then go to that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free descriptor, which is `number`.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)


def prepare_standard_streams() -> None:
    """Prepares this process for closed standard streams, and for a standard error without a reader.

    If standard error is closed, Python sets `sys.stderr` to None. Without this function,
    `print(text, file=sys.stderr)` would then print to standard output.
    """
    reserve_closed_descriptors()
    given = sys.stderr
    if given is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            _StandardError(2, "w", closefd=False),  # unbuffered, like standard error of python -u
            encoding=None if given is None else given.encoding,
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )


def has_reader(descriptor: int) -> bool:
    """Returns whether a pipe still has a reader; True for every other kind of file."""
    asked = select.poll()
    asked.register(descriptor, 0)
    return not any(events & select.POLLERR for _, events in asked.poll(0))


def drop_output(descriptor: int) -> None:
    """Redirects a descriptor to /dev/null, which drops all output."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _StandardError(io.FileIO):
    """Standard error that drops text once its reader has ended, so that the command goes on."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            drop_output(self.fileno())
            return memoryview(data).nbytes
