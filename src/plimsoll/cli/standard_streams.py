"""Standard streams that a shell has closed (`>&-`): no file gets their numbers by accident."""

from __future__ import annotations

import os
import sys


def replace_closed_streams() -> None:
    """Put the null device in the place of each that is closed.

    Else the next file that is opened would have its number, and get what a script prints. Python
    prints to standard output what is for a standard error that is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(number, True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
