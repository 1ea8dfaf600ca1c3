"""Reads how much host memory a process has, and the most that it had since the last reading."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024
_STATUS = re.compile(
    rb"VmHWM:\s+(\d+) kB.*?RssAnon:\s+(\d+) kB\nRssFile:\s+(\d+) kB\nRssShmem:\s+(\d+) kB",
    re.DOTALL,
)
_SMAPS = re.compile(
    rb"Pss_Shmem:\s+(\d+) kB.*?Private_Dirty:\s+(\d+) kB.*?Anonymous:\s+(\d+) kB", re.DOTALL
)


@dataclass(frozen=True)
class Resident:
    """Resident memory in bytes.

    Attributes:
        own: Private memory without a file behind it, such as the heap.
        shared: Memory shared with other processes.
        most_own: The approximate maximum of `own` since the last reading.
    """

    own: int
    shared: int
    most_own: int


def resident(process: int | str = "self") -> Resident | None:
    """Returns a process's resident memory, and resets the kernel's maximum of this memory.

    Returns None if the kernel's figures cannot be read.
    """
    folder = Path("/proc") / str(process)
    try:
        found = _STATUS.search((folder / "status").read_bytes())
    except OSError:
        return None
    if found is None:
        return None
    highest, own, files, shared = (int(number) * _KIB for number in found.groups())
    with suppress(OSError):  # without the reset, older peaks stay in the maximum
        (folder / "clear_refs").write_bytes(b"5")
    return Resident(own, shared, max(own, highest - files - shared))


def common_bytes(process: int) -> int | None:
    """Returns the anonymous memory that a fork still shares with its parent; None if unknown.

    The kernel takes milliseconds to count these bytes.
    """
    try:
        found = _SMAPS.search(Path(f"/proc/{process}/smaps_rollup").read_bytes())
    except OSError:
        return None
    if found is None:
        return None
    shared, alone, own = (int(number) * _KIB for number in found.groups())
    return max(0, own - max(0, alone - shared))
