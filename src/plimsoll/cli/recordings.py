"""Reading the recordings that a command is given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plimsoll.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.trace import Recording


def read(path: Path, memory: str | None, *, needs_history: bool = True) -> Recording:
    """Read a recording; what is missing of it is told on stderr.

    Args:
        path: Of the file.
        memory: What `--read-memory` allows.
        needs_history: Whether a snapshot without a history is refused.

    Raises:
        InputError: If it cannot be read.
    """
    from plimsoll.trace import read_recording

    recording = read_recording(path, needs_history=needs_history, memory=memory)
    for problem in recording.problems:
        print(printable(f"note: {path}: {problem}"), file=sys.stderr)
    return recording
