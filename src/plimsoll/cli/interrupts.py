"""Delays Ctrl-C (SIGINT) until modules are imported, if the system can block signals."""

import signal


def hold_interrupts() -> None:
    """Have an interrupt wait from now on."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def admit_interrupts() -> None:
    """Have interrupts come, at once if one waited."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
