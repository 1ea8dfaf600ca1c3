"""What a process has of the host's memory now, and had at most since it was last asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


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
        status = _read(folder / "status")
        own, files, shared = status["RssAnon"], status["RssFile"], status["RssShmem"]
        most = max(own, status["VmHWM"] - files - shared)
    except (OSError, KeyError):
        return None
    with suppress(OSError):  # then it is the most since the process began
        (folder / "clear_refs").write_text("5")
    return Resident(own, shared, most)


def private_bytes(process: int) -> int | None:
    """What a process alone has in memory, of no file; it takes milliseconds to say."""
    try:
        found = _read(Path(f"/proc/{process}/smaps_rollup"))
        return max(0, found["Private_Dirty"] - found["Pss_Shmem"])
    except (OSError, KeyError):
        return None


def _read(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {
        line[0].removesuffix(":"): int(line[1]) * _KIB
        for line in lines
        if len(line) == 3 and line[2] == "kB"
    }
