"""What a running process tells about its GPU memory, and how others ask it.

A process in which plimsoll serves publishes its counters in a small file and answers requests for a
snapshot, both for its own user only; see `publisher`. Prometheus gets the same counters from
`plimsoll.metrics`.
"""

from plimsoll.telemetry.counters import (
    DeviceCounters,
    ProcessCounters,
    read_counters,
    read_processes,
)
from plimsoll.telemetry.publisher import publish
from plimsoll.telemetry.requests import request_snapshot

__all__ = [
    "DeviceCounters",
    "ProcessCounters",
    "publish",
    "read_counters",
    "read_processes",
    "request_snapshot",
]
