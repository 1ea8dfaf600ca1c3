"""Finds how much of a card's memory other programs already use."""

from __future__ import annotations

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.base.units import parse_size

AUTO = "auto"
"""The value of `used` that makes plimsoll ask the driver how much memory is in use."""


def used_memory(used: int | str | None) -> int:
    """Returns `used` in bytes; for "auto", the memory in use now on this machine's first GPU.

    Raises:
        InputError: If `used` is neither a size nor "auto". Also if `used` is "auto" and plimsoll
            cannot read the memory in use.
    """
    if used is None or used in (0, "0"):
        return 0
    return _used_now() if used == AUTO else parse_size(used)


def _used_now() -> int:
    reading = Nvml().read()
    why = reading.unavailable or "NVML knows of none"
    if not reading.gpus:
        raise InputError(f"--used auto needs an NVIDIA GPU on this machine ({why}); write a size")
    used = reading.gpus[0].used_bytes
    if used is None:
        raise InputError(
            "the driver does not say how much memory of the first GPU is in use; write a size"
        )
    return used
