"""Reads the metrics that a process on any machine serves at an address."""

from __future__ import annotations

import math
import time
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.process_place import LONGEST_NAME, ProcessPlace
from plimsoll.base.telemetry.counters import DeviceCounters, ProcessCounters
from plimsoll.base.telemetry.metrics import prometheus_package
from plimsoll.base.telemetry.nvml import Reading
from plimsoll.integrations.top.http_get import get
from plimsoll.integrations.top.model import Machine, put_together
from plimsoll.integrations.top.remote_json import of_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS = 5.0
_MOST_BYTES = 4 << 20
_MOST_DEVICES = 64
_MOST_LINES = 4096
_LONGEST_LINE = 4096
_A_LONG_TIME_NS = 3600 * 10**9
_MAY_BE_UNKNOWN = ("total_bytes", "context_bytes", "fragments_bytes")
_BYTES = (
    *("allocated_bytes", "active_bytes", "reserved_bytes", "shared_bytes"),
    *("peak_allocated_bytes", "peak_reserved_bytes"),
)
_COUNTS = ("alloc_retries", "ooms", "spills")
_Values = dict[tuple[str, str], int]  # values by the metric's name and the device


class MetricsHost:
    """A process that serves metrics at an address.

    Args:
        address: An address such as http://node1:9400; if it has no path, /metrics is added.

    Raises:
        InputError: If the address is invalid.
    """

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_one = False
        if not is_one or not address.isascii() or not address.isprintable() or " " in address:
            raise InputError(f"{printable(address)!r} is no address such as http://node1:9400")
        path = parts.path if parts.path not in ("", "/") else "/metrics"
        self._address = parts._replace(path=path, fragment="")
        self.name = parts.netloc.rpartition("@")[2]
        self.login = parts.hostname or ""

    def look(self) -> Machine:
        """Returns the state of the process.

        Raises:
            InputError: If the answer is invalid or late.
        """
        ends = time.monotonic() + _SECONDS
        content = get(self._address, seconds=_SECONDS, most_bytes=_MOST_BYTES)
        process = _process(_own_lines(content), ends)
        return of_host(put_together(Reading(), [process], program_of=lambda _: None), self.name)

    def write_snapshot(self, pid: int, file: IO[bytes]) -> None:  # noqa: ARG002
        """Raises an error: metrics contain no snapshot.

        Raises:
            InputError: Always.
        """
        raise InputError("metrics give no snapshots: name the host for ssh, as --host node1")


def _own_lines(content: bytes) -> str:
    """Returns the lines with plimsoll's samples; refuses an answer that is too long to parse.

    Raises:
        InputError: If there are too many lines, or a line is too long.
    """
    lines = [line for line in content.split(b"\n") if line.startswith(b"plimsoll_")]
    if len(lines) > _MOST_LINES or any(len(line) > _LONGEST_LINE for line in lines):
        raise InputError("its answer is too long for one of plimsoll.metrics()")
    return b"".join(line + b"\n" for line in lines).decode(errors="replace")


def _process(text: str, ends: float) -> ProcessCounters:
    """Returns the counters of one process.

    Args:
        text: The lines with plimsoll's samples.
        ends: The deadline on the monotonic clock.

    Raises:
        InputError: If the text has no counters.
    """
    values: _Values = {}
    labels: dict[str, Mapping[str, str]] = {}  # the labels of each device
    about: Mapping[str, str] = {}
    try:
        for name, found, number in _samples(text):
            if time.monotonic() > ends:
                raise InputError(f"no answer within {_SECONDS:g} s")
            if name == "plimsoll_process_info":
                about = found
            elif name == "plimsoll_device_info":
                labels[found.get("device", "")] = found
            elif math.isfinite(number) and 0 <= number < 1 << 63:
                values[name.removeprefix("plimsoll_"), found.get("device", "")] = int(number)
            elif name.removeprefix("plimsoll_").removesuffix("_total") in (*_BYTES, *_COUNTS):
                raise ValueError  # else an invalid figure would count as 0
        indices = [device for device in labels if device.isascii() and device.isdecimal()]
        if not about or len(indices) > _MOST_DEVICES:
            raise ValueError
        devices = [_device(values, labels[each], each) for each in indices]
        place = _place(about)
    except InputError:
        raise
    except (ValueError, LookupError):
        raise InputError("its answer is none of plimsoll.metrics()") from None
    pid = about.get("pid", "")
    return ProcessCounters(
        pid=int(pid) if pid.isascii() and pid.isdecimal() and len(pid) < 12 else 0,
        start_ticks=0,
        namespace=0,
        heartbeat_ns=time.monotonic_ns(),
        interval_ns=_A_LONG_TIME_NS,
        pinned_bytes=values.get(("pinned_bytes", "")),
        shared_total_bytes=None,
        program=about.get("program", "")[:LONGEST_NAME],
        allocator=about.get("allocator", "")[:LONGEST_NAME],
        devices=tuple(devices),
        place=place,
    )


def _place(about: Mapping[str, str]) -> ProcessPlace:
    rank = about.get("rank", "")
    known = int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 12 else None
    return ProcessPlace.from_dict(
        {"rank": known, "host": about.get("host"), "job": about.get("job_id")}
    )


def _device(values: _Values, labels: Mapping[str, str], device: str) -> DeviceCounters:
    uuid = labels.get("uuid", "")[:LONGEST_NAME]
    return DeviceCounters(
        index=int(device[:9]),
        is_simulated=not uuid,
        name=labels.get("name", "")[:LONGEST_NAME],
        uuid=uuid,
        used_bytes=None,
        shared_allocated_bytes=0,
        **{name: values.get((name, device)) for name in _MAY_BE_UNKNOWN},  # type: ignore[arg-type]
        **{name: values.get((name, device), 0) for name in _BYTES},
        **{f"num_{name}": values.get((f"{name}_total", device), 0) for name in _COUNTS},
    )


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in prometheus_package().parser.text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
