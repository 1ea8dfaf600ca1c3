"""Removes POSIX shared memory that a trial's program left in the real /dev/shm.

A trial with overlays has a /dev/shm of its own, so its program leaves nothing in the real one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_NOTED = "shared"
_PLACE = Path("/dev/shm")  # noqa: S108


def remove_shared_memory(folder: Path) -> None:
    """Removes the POSIX shared memory that the scratch layer noted in a trial's folder."""
    with suppress(FileNotFoundError):
        for name in (folder / _NOTED).read_bytes().splitlines():
            with suppress(OSError):
                (_PLACE / os.fsdecode(name.lstrip(b"/"))).unlink()
