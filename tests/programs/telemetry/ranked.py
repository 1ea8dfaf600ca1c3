"""Publishes invented counters of one GPU until stdin ends; the variable RANK sets the rank.

python ranked.py MIB
"""

import sys

from plimsoll.base.telemetry.counter_source import Counters
from plimsoll.base.telemetry.counters import DeviceCounters
from plimsoll.base.telemetry.publisher import publish, source_of_process

SIZE = int(sys.argv[1]) << 20


class Source:
    """The counters of one simulated GPU."""

    allocator = "elastic"

    def read(self) -> Counters:
        """Returns counters; the script's argument MIB says how much is allocated."""
        sizes = [16 << 30, SIZE, 0, SIZE, SIZE, SIZE, 0, 0, 0, SIZE, SIZE, 0, 0, 0]
        return Counters((DeviceCounters(0, True, "Tesla T4", "", *sizes),), pinned_bytes=0)


publish(Source(), lambda: {"segments": [], "size": SIZE})
assert source_of_process() is not None
print("ready", flush=True)
sys.stdin.read()
