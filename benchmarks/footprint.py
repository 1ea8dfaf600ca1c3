"""Reads a process's memory on the host and on a card, to check that it does not grow."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass, fields
from pathlib import Path

from plimsoll.base.units import format_size


@dataclass(frozen=True)
class Footprint:
    """Memory figures of this process and of a card at one moment, in bytes except for `maps`.

    Attributes:
        resident: The process's resident host memory. Some drivers count page-locked memory in it.
        addresses: The process's address space, reserved ranges included.
        maps: Lines in /proc/self/maps. Linux's default limit is 65530 (vm.max_map_count).
        page_locked: Page-locked memory that the process allocated for copies.
        card: Memory of the card that is in use, by all processes.
    """

    resident: int
    addresses: int
    maps: int
    page_locked: int
    card: int

    @classmethod
    def now(cls, *, page_locked: int, card: int) -> Footprint:
        """Returns this process's footprint, after a garbage collection."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        kibibytes = {key: int(status[key].split()[0]) for key in ("VmRSS", "VmSize")}
        with Path("/proc/self/maps").open() as maps:
            count = sum(1 for _ in maps)
        return cls(
            resident=kibibytes["VmRSS"] << 10,
            addresses=kibibytes["VmSize"] << 10,
            maps=count,
            page_locked=page_locked,
            card=card,
        )

    def growth_since(self, before: Footprint) -> dict[str, int]:
        """Returns the growth of each figure."""
        return {
            field.name: getattr(self, field.name) - getattr(before, field.name)
            for field in fields(self)
        }


def size_text(amount: int) -> str:
    """Returns a size with its sign, as text."""
    return f"{'-' if amount < 0 else '+'}{format_size(abs(amount))}"
