"""Runs a program whose answer is untrusted, with limits on its time and output."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import IO, TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECE = 1 << 16
_MOST_COMPLAINT = 4096


def run_bounded(
    command: Sequence[str], into: IO[bytes], *, timeout_seconds: float, most_bytes: int
) -> tuple[int, str]:
    """Runs a program without a shell and without input, and writes its stdout to a file.

    Args:
        command: The program and its arguments.
        into: The file that receives the program's stdout.
        timeout_seconds: The most seconds that the program may run before it is killed.
        most_bytes: The most bytes that the program may print to stdout before it is killed.

    Returns:
        Returns the program's exit status and the end of its stderr.

    Raises:
        InputError: If the program cannot be started, takes too long or prints too much.
    """
    ends = time.monotonic() + timeout_seconds
    try:
        started = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise InputError(f"{command[0]} cannot be run: {error.strerror}") from None
    complaint = b""
    with started, selectors.DefaultSelector() as selector:
        try:
            for pipe in (started.stdout, started.stderr):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                left = ends - time.monotonic()
                for key, _ in selector.select(max(left, 0)):
                    piece = os.read(key.fd, _PIECE)
                    if not piece:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is started.stderr:
                        complaint = (complaint + piece)[-_MOST_COMPLAINT:]
                    else:
                        most_bytes -= into.write(piece)
                if most_bytes < 0:
                    raise InputError(f"its answer is too long, over {format_size(into.tell())}")
                if time.monotonic() >= ends:
                    raise InputError(f"no answer within {timeout_seconds:g} s")
            status = started.wait(max(ends - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise InputError(f"no answer within {timeout_seconds:g} s") from None
        finally:
            started.kill()
    return status, complaint.decode(errors="replace")
