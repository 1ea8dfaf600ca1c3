"""Standard error for what scripts write, also where it is a notebook's and takes text alone."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _AsText(io.RawIOBase):
    """Takes bytes for a stream that takes text."""

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        content = bytes(data)
        sys.stderr.write(content.decode(errors="replace"))
        return len(content)


def stderr_bytes() -> BinaryIO:
    """Where bytes for people go."""
    return cast("BinaryIO", getattr(sys.stderr, "buffer", None) or _AsText())


def stderr_file() -> int:
    """Its file descriptor, for another process; the process's own where the stream has none."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return 2
