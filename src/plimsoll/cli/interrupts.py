"""Delays Ctrl-C (SIGINT) until modules are imported, if the system can block signals."""

import signal


def hold_interrupts() -> None:
    """Blocks SIGINT, so that interrupts wait until `admit_interrupts` is called."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def admit_interrupts() -> None:
    """Unblocks SIGINT. If an interrupt is waiting, it arrives immediately."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
