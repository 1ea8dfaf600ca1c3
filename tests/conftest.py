"""What all tests rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Interrupts interrupt, though what runs in the background of a shell is started without."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
