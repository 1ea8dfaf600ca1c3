"""What a process has of the host's memory now, and had at most since it was last asked."""

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
    """Bytes in memory.

    Attributes:
        own: Of no file: the heap and other memory of its own.
        shared: Of memory that it shares with others.
        most_own: The most that the former was, about.
    """

    own: int
    shared: int
    most_own: int


def resident(process: int | str = "self") -> Resident | None:
    """Read it, and have the most begin anew; None if the process is gone, or nobody says."""
    folder = Path("/proc") / str(process)
    try:
        found = _STATUS.search((folder / "status").read_bytes())
    except OSError:
        return None
    if found is None:
        return None
    highest, own, files, shared = (int(number) * _KIB for number in found.groups())
    with suppress(OSError):  # then it is the most since the process began
        (folder / "clear_refs").write_bytes(b"5")
    return Resident(own, shared, max(own, highest - files - shared))


def common_bytes(process: int) -> int | None:
    """What of a process's own memory others have too, since one was forked from the other.

    It takes milliseconds to say.
    """
    try:
        found = _SMAPS.search(Path(f"/proc/{process}/smaps_rollup").read_bytes())
    except OSError:
        return None
    if found is None:
        return None
    shared, alone, own = (int(number) * _KIB for number in found.groups())
    return max(0, own - max(0, alone - shared))
