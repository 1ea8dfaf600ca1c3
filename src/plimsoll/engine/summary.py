"""Formats the table of torch.cuda.memory_summary(), character for character.

Lines on dedicated and shared memory can follow the table.

A group of rows uses the units of its first row, so that rows can be compared. Sizes are in KiB from
768 KiB on, in MiB from 768 MiB on, and so on. Counts are in thousands from 750 thousand on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from plimsoll.base.units import format_count, format_size

if TYPE_CHECKING:
    from plimsoll.engine.protocol import Engine

_WIDTH = 75
_COLUMNS = ("current", "peak", "allocated", "freed")


def _scaled(
    value: int, scale: int, units: tuple[str, ...], step: int, least: int
) -> tuple[int, str]:
    size = float(scale)
    level = 0
    while level + 1 < len(units) and size >= least:
        value //= step
        size /= step
        level += 1
    return value, units[level]


def _size(value: int, scale: int) -> str:
    units = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
    shown, unit = _scaled(value, scale, units, 1024, 768 * 1024)
    return f"{shown:6d} {unit}"


def _count(value: int, scale: int) -> str:
    shown, unit = _scaled(value, scale, (" ", "K", "M"), 1000, 750 * 1000)
    return f"{shown:7d} {unit} "


_POOLED: tuple[tuple[str, str, Callable[[int, int], str]], ...] = (
    ("allocated_bytes", "Allocated memory", _size),
    ("active_bytes", "Active memory", _size),
    ("requested_bytes", "Requested memory", _size),
    ("reserved_bytes", "GPU reserved memory", _size),
    ("inactive_split_bytes", "Non-releasable memory", _size),
    ("allocation", "Allocations", _count),
    ("active", "Active allocs", _count),
    ("segment", "GPU reserved segments", _count),
    ("inactive_split", "Non-releasable allocs", _count),
)
_UNPOOLED = (
    ("oversize_allocations", "Oversize allocations"),
    ("oversize_segments", "Oversize GPU segments"),
)


def summary_text(stats: Mapping[str, int], device: int, *, abbreviated: bool = False) -> str:
    """Returns the table for the counters of torch.cuda.memory_stats() on `device`."""
    lines = [
        "=" * _WIDTH,
        f" {'':16} PyTorch CUDA memory summary, device ID {device:<17d} ",
        "-" * _WIDTH,
        f"  {'':9} CUDA OOMs: {stats['num_ooms']:<12d} | {'':6} "
        f"cudaMalloc retries: {stats['num_alloc_retries']:<8d}  ",
        "=" * _WIDTH,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for key, name, show in _POOLED:
        lines.append("-" * _WIDTH)
        scales = [stats[f"{key}.all.{column}"] for column in _COLUMNS]
        rows = [("all", name)]
        if not abbreviated:
            rows += [
                ("large_pool", "      from large pool"),
                ("small_pool", "      from small pool"),
            ]
        for pool, label in rows:
            values = [stats[f"{key}.{pool}.{column}"] for column in _COLUMNS]
            lines.append(_row(label, [show(*pair) for pair in zip(values, scales, strict=True)]))
    for key, name in _UNPOOLED:
        values = [stats[f"{key}.{column}"] for column in _COLUMNS]
        lines += ["-" * _WIDTH, _row(name, [_count(value, value) for value in values])]
    lines.append("=" * _WIDTH)
    return "|" + "|\n|".join(lines) + "|\n"


def tiers_text(engine: Engine) -> str:
    """Returns the lines on dedicated, shared and paused memory that follow the table."""
    stats = engine.statistics()
    shared = stats["shared_reserved_bytes.current"]
    shared_allocated = stats["shared_allocated_bytes.current"]
    dedicated = stats["reserved_bytes.all.current"] - shared
    paused = stats["paused_bytes.current"]
    dedicated_allocated = stats["allocated_bytes.all.current"] - shared_allocated - paused
    (free, total), (host_free, host_total) = engine.memory_info(), engine.shared_info()
    lines = [
        f"dedicated: {_reserved(dedicated, max(dedicated_allocated, 0), engine.limit)}; "
        f"{format_size(free)} of the card's {format_size(total)} free",
        f"shared: {_reserved(shared, shared_allocated, _shared_limit(engine))}, "
        f"{format_size(engine.host_reserved_bytes())} page-locked for copies; "
        f"{format_size(host_free)} of the host's {format_size(host_total)} free",
    ]
    if count := stats["num_spills"]:
        requests = format_count(count, "request")
        peak = format_size(stats["shared_allocated_bytes.peak"])
        lines.append(
            f"spilled: {requests} found too little dedicated memory; "
            f"at most {peak} lay in shared memory"
        )
    if paused:
        lines.append(f"paused: {format_size(paused)} are off the card")
    return "\n".join(lines) + "\n"


def _reserved(reserved: int, allocated: int, limit: int | None) -> str:
    text = f"{format_size(reserved)} reserved, {format_size(allocated)} of it allocated"
    return text if limit is None else f"{text}, at most {format_size(limit)}"


def _shared_limit(engine: Engine) -> int | None:
    try:
        return engine.shared_limit
    except ValueError:  # only the elastic allocator has this limit
        return None


def _row(label: str, cells: list[str]) -> str:
    return f" {label:<21} | " + " | ".join(cells) + " "
