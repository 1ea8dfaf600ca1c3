"""Makes a process end with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal

_SET_PARENT_DEATH_SIGNAL = 1  # an option of prctl


def die_with(parent: int, number: signal.Signals) -> None:
    """Makes the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number))
    if os.getppid() != parent:  # the parent ended before this call
        os.kill(os.getpid(), number)
