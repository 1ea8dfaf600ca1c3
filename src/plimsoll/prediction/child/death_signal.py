"""Processes that end with the one that started them, whatever ends that."""

from __future__ import annotations

import ctypes
import os
import signal

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def die_with(parent: int, number: signal.Signals) -> None:
    """Have this process get a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number))
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), number)
