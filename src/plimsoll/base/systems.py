"""Which systems plimsoll works on: recordings are read anywhere, the rest needs Linux."""

from __future__ import annotations

import platform

from plimsoll.base.errors import InputError

ANYWHERE = ("gpus", "replay", "explain", "view", "doctor", "sweep", "metrics")
"""The verbs that need no Linux."""


def linux_instead() -> str | None:
    """Where somebody on this system has Linux; None on Linux itself."""
    system = platform.system()
    if system == "Linux":
        return None
    return "use WSL" if system == "Windows" else "use a machine or a container with Linux"


def require_linux(what: str) -> None:
    """Refuse what this system cannot do.

    Args:
        what: What needs Linux, for people.

    Raises:
        InputError: If this is another system.
    """
    instead = linux_instead()
    if instead is not None:
        raise InputError(f"{what} needs Linux: {instead}")
