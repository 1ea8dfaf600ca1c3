"""The common setup of all tests."""

from __future__ import annotations

import os
import signal

from tests.output_lines import watch_lines

watch_lines()


def pytest_configure() -> None:
    """Hides the cards that were measured on this machine, and lets SIGINT interrupt the tests.

    A shell that starts the tests in the background makes them ignore SIGINT.
    """
    os.environ["PLIMSOLL_CARDS"] = os.devnull
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
