"""What all tests rely on."""

from __future__ import annotations

import os
import signal

from tests.output_lines import watch_lines

watch_lines()


def pytest_configure() -> None:
    """Interrupts interrupt, though a shell starts what it runs in the background without them.

    Tests do not see the cards that were measured on this machine.
    """
    os.environ["PLIMSOLL_CARDS"] = os.devnull
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
