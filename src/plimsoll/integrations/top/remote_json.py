"""Parses the output of `plimsoll top --json` from another machine; does not trust it.

Every text is truncated and every number is checked. A missing key, as in the output of an older
version, is an unknown value.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from plimsoll.base.errors import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.telemetry.counters import DeviceCounters, ProcessCounters
from plimsoll.integrations.top.model import GpuUse, Machine, ProcessUse

_MOST_GPUS = 1024
_MOST_PROCESSES = 4096
_MOST_NOTES = 64
_LONGEST_TEXT = 300
_TOO_MUCH = 1 << 63
_TOO_LONG_SECONDS = 1 << 31
_TOO_HIGH_PID = 1 << 31


def machine_from_json(content: bytes, host: str) -> Machine:
    """Returns the machine that the text describes, with the host's name in its GPUs' labels.

    Raises:
        InputError: If the text is invalid.
    """
    try:
        values = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InputError("its answer is none of plimsoll top: no JSON") from None
    try:
        gpus = [_gpu(each, host) for each in _list(values, "gpus", _MOST_GPUS)]
        notes = [_note(each, host) for each in _list(values, "notes", _MOST_NOTES)]
    except ValueError as error:
        raise InputError(f"its answer is none of plimsoll top: {error}") from None
    return Machine(tuple(gpus), tuple(notes))


def of_host(machine: Machine, host: str) -> Machine:
    """Returns the same machine with the host's name in front of its GPUs' labels."""
    gpus = [replace(gpu, host=host, label=f"{host}:{gpu.label}") for gpu in machine.gpus]
    notes = [f"{host}: {note}" for note in machine.notes]
    return replace(machine, gpus=tuple(gpus), notes=tuple(notes))


def _gpu(values: Any, host: str) -> GpuUse:
    label = _text(values, "label")
    utilization = values.get("utilization")
    if not (utilization is None or (type(utilization) in (int, float) and 0 <= utilization <= 1)):
        raise ValueError("an impossible utilization")
    return GpuUse(
        label=f"{host}:{label}",
        name=_text(values, "name"),
        uuid=_text(values, "uuid"),
        is_simulated=values.get("is_simulated") is True,
        dedicated_total_bytes=_number(values, "dedicated_total_bytes"),
        dedicated_used_bytes=_number(values, "dedicated_used_bytes"),
        shared_total_bytes=_number(values, "shared_total_bytes"),
        shared_used_bytes=_number(values, "shared_used_bytes") or 0,
        utilization=utilization,
        processes=tuple(_use(each) for each in _list(values, "processes", _MOST_PROCESSES)),
        notes=tuple(_note(each) for each in _list(values, "notes", _MOST_NOTES)),
        host=host,
    )


def _use(values: Any) -> ProcessUse:
    pid = _number(values, "pid")
    if not pid or pid >= _TOO_HIGH_PID:
        raise ValueError("an impossible pid")
    counters = _counters(values) if values.get("runs_plimsoll") is True else None
    return ProcessUse(
        pid=pid,
        program=_text(values, "program") or None,
        driver_bytes=_number(values, "driver_bytes"),
        context_bytes=_number(values, "context_bytes"),
        counters=counters,
        process=None if counters is None else _process(values, pid, counters),
        silent_seconds=_seconds(values, "silent_seconds"),
    )


def _counters(values: Any) -> DeviceCounters:
    counted = (
        "allocated_bytes", "active_bytes", "reserved_bytes", "shared_bytes",
        "shared_allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
        "num_alloc_retries", "num_ooms", "num_spills",
    )  # fmt: skip
    return DeviceCounters(
        index=_number(values, "device") or 0,
        is_simulated=False,
        name="",
        uuid="",
        total_bytes=None,
        used_bytes=None,
        context_bytes=_number(values, "context_bytes"),
        fragments_bytes=_number(values, "fragments_bytes"),
        **{name: _number(values, name) or 0 for name in counted},
    )


def _process(values: Any, pid: int, counters: DeviceCounters) -> ProcessCounters:
    place = {"rank": values.get("rank"), "job": values.get("job")}
    return ProcessCounters(
        pid=pid,
        start_ticks=0,
        namespace=0,
        heartbeat_ns=0,
        interval_ns=0,
        pinned_bytes=_number(values, "pinned_bytes"),
        shared_total_bytes=None,
        program=_text(values, "program"),
        allocator=_text(values, "allocator"),
        devices=(counters,),
        place=ProcessPlace.from_dict(place),
    )


def _list(values: Any, key: str, most: int) -> list[Any]:
    found = values.get(key, []) if isinstance(values, dict) else None
    if not isinstance(found, list) or len(found) > most:
        raise ValueError(f"no list of {key}")
    return found


def _number(values: Any, key: str) -> int | None:
    found = values.get(key) if isinstance(values, dict) else -1
    if found is None or (type(found) is int and 0 <= found < _TOO_MUCH):
        return found
    raise ValueError(f"an impossible {key}")


def _seconds(values: Any, key: str) -> float | None:
    found = values.get(key)
    if found is None or (type(found) in (int, float) and 0 <= found < _TOO_LONG_SECONDS):
        return found if found is None else float(found)
    raise ValueError(f"an impossible {key}")


def _text(values: Any, key: str) -> str:
    found = values.get(key) if isinstance(values, dict) else 0
    if found is None or isinstance(found, str):
        return (found or "")[:_LONGEST_TEXT]
    raise ValueError(f"an impossible {key}")


def _refuse(constant: str) -> None:
    """Raises for NaN and infinities, which Python's parser accepts but JSON does not have."""
    raise ValueError(constant)


def _note(note: Any, host: str = "") -> str:
    if not isinstance(note, str):
        raise ValueError("an impossible note")
    return f"{host}: {note}"[:_LONGEST_TEXT] if host else note[:_LONGEST_TEXT]
