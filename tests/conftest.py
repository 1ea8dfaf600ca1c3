"""The common setup of all tests."""

from __future__ import annotations

import os
import signal

from tests.output_lines import watch_lines

watch_lines()


def pytest_configure() -> None:
    """Lets Ctrl-C interrupt the tests, and hides cards that were measured on this machine.

    A shell starts background programs with interrupts ignored.
    """
    os.environ["PLIMSOLL_CARDS"] = os.devnull
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
