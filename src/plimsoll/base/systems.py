"""The systems that plimsoll runs on. Some commands run on any system; the rest need Linux."""

from __future__ import annotations

import platform

from plimsoll.base.errors import InputError

ANYWHERE = ("gpus", "replay", "explain", "view", "doctor", "sweep", "metrics")
"""The commands of plimsoll that run on any system."""


def linux_instead() -> str | None:
    """Returns advice on how to get Linux on this system, such as "use WSL"; None on Linux."""
    system = platform.system()
    if system == "Linux":
        return None
    return "use WSL" if system == "Windows" else "use a machine or a container with Linux"


def require_linux(what: str) -> None:
    """Raises an error on every system but Linux.

    Args:
        what: The function that needs Linux, in words.

    Raises:
        InputError: If this system is not Linux.
    """
    instead = linux_instead()
    if instead is not None:
        raise InputError(f"{what} needs Linux: {instead}")
