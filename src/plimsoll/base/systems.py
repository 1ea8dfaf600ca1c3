"""The systems that plimsoll runs on: recordings are read anywhere, all other verbs need Linux."""

from __future__ import annotations

import platform

from plimsoll.base.errors import InputError

ANYWHERE = ("gpus", "replay", "explain", "view", "doctor", "sweep", "metrics")
"""The verbs that run on any system."""


def linux_instead() -> str | None:
    """Names the way to Linux on this system, such as WSL; None on Linux itself."""
    system = platform.system()
    if system == "Linux":
        return None
    return "use WSL" if system == "Windows" else "use a machine or a container with Linux"


def require_linux(what: str) -> None:
    """Refuse a function that needs Linux on another system.

    Args:
        what: The function that needs Linux, in words.

    Raises:
        InputError: If this is another system.
    """
    instead = linux_instead()
    if instead is not None:
        raise InputError(f"{what} needs Linux: {instead}")
