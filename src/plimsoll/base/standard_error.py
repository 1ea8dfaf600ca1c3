"""Returns standard error as a stream or a descriptor to which a script's output can be copied.

A script's output is bytes. A notebook's `sys.stderr` takes only text, so the stream decodes these
bytes.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _AsText(io.RawIOBase):
    """Takes bytes and writes them as text to `sys.stderr`."""

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        content = bytes(data)
        sys.stderr.write(content.decode(errors="replace"))
        return len(content)


def stderr_bytes() -> BinaryIO:
    """Returns standard error as a stream of bytes."""
    return cast("BinaryIO", getattr(sys.stderr, "buffer", None) or _AsText())


def stderr_file() -> int:
    """Returns the descriptor of `sys.stderr`, to give to a child process; 2 if it has none."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return 2
