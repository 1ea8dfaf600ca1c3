"""The memory of a card that other programs already have."""

from __future__ import annotations

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.base.units import parse_size

AUTO = "auto"
"""For what the driver says."""


def used_memory(used: int | str | None) -> int:
    """In bytes: of None and 0 nothing, of "auto" what is in use of this machine's first GPU now.

    Raises:
        InputError: If it is no size, or there is no GPU, or no driver that says it.
    """
    if used is None or used in (0, "0"):
        return 0
    return _used_now() if used == AUTO else parse_size(used)


def _used_now() -> int:
    reading = Nvml().read()
    why = reading.unavailable or "NVML knows of none"
    if not reading.gpus:
        raise InputError(
            f"what others use can only be asked where there is an NVIDIA GPU: {why}; write a size"
        )
    used = reading.gpus[0].used_bytes
    if used is None:
        raise InputError("the driver does not say what is in use of the first GPU; write a size")
    return used
