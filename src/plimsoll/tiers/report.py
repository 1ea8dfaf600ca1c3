"""What the tiers hold: counters, a summary and a snapshot, in PyTorch's forms and beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.engine.summary import summary_text
from plimsoll.tiers.engines import engine_of, engines_in_use
from plimsoll.tiers.regions import region_names, region_uses
from plimsoll.units import format_size

if TYPE_CHECKING:
    from plimsoll import _core


def memory_stats(device: int | None = None) -> dict[str, int]:
    """The counters of `torch.cuda.memory_stats()`, and those of shared and paused memory.

    Beside PyTorch's there are `shared_allocated_bytes`, `shared_reserved_bytes` and `paused_bytes`
    (each with current, peak, allocated and freed), and `num_spills`, the requests that got shared
    memory because dedicated memory was spent. PyTorch's count both tiers.

    Args:
        device: The GPU, by default the current one.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    return engine_of(device).statistics()


def memory_summary(device: int | None = None, *, abbreviated: bool = False) -> str:
    """PyTorch's table, and below it both tiers and all regions.

    Args:
        device: The GPU, by default the current one.
        abbreviated: Without the lines of the small and the large pool.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    engine = engine_of(device)
    index = next(i for i, other in engines_in_use().items() if other.handle == engine.handle)
    table = summary_text(engine.statistics(), index, abbreviated=abbreviated)
    return table + "\n".join([*_tiers(engine), *_regions(index)]) + "\n"


def _tiers(engine: _core.LiveEngine) -> list[str]:
    statistics = engine.statistics()
    free, total = engine.memory_info()
    host_free, host_total = engine.shared_info()
    shared = statistics["shared_reserved_bytes.current"]
    pinned = engine.host_reserved_bytes()
    dedicated = statistics["reserved_bytes.all.current"] - shared
    limits = [
        "" if limit is None else f", at most {format_size(limit)}"
        for limit in (engine.limit, _shared_limit(engine))
    ]
    lines = [
        f"dedicated: {format_size(dedicated)} reserved{limits[0]}; the card has "
        f"{format_size(free)} of {format_size(total)} free",
        f"shared: {format_size(shared)} reserved{limits[1]}, "
        f"{format_size(statistics['shared_allocated_bytes.current'])} of it allocated, and "
        f"{format_size(pinned)} page-locked for copies; the host can lock "
        f"{format_size(host_free)} of {format_size(host_total)} more",
    ]
    if statistics["num_spills"]:
        peak = format_size(statistics["shared_allocated_bytes.peak"])
        lines.append(
            f"spilled: {statistics['num_spills']} requests found no dedicated memory; "
            f"up to {peak} lay in shared memory"
        )
    return lines


def _shared_limit(engine: _core.LiveEngine) -> int | None:
    try:
        return engine.shared_limit
    except ValueError:  # PyTorch's rules have no such limit
        return None


def _regions(device: int) -> list[str]:
    lines = []
    for name in region_names():
        use = region_uses(name).get(device)
        if use is None:
            continue
        state = f", {format_size(use.paused_bytes)} paused" if use.paused_bytes else ""
        lines.append(
            f"region {name}: {format_size(use.allocated_bytes)} allocated, "
            f"{format_size(use.reserved_bytes)} reserved, of it "
            f"{format_size(use.shared_reserved_bytes)} shared{state}"
        )
    return lines


def memory_snapshot() -> dict[str, Any]:
    """As `torch.cuda.memory._snapshot()`, with what each block and segment has in shared memory.

    Where that is anything, it is under "shared_size"; segments whose content is off the card say
    "is_paused".

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    import torch

    engines = engines_in_use()
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    segments = {s.address: s for engine in engines.values() for s in engine.segments()}
    shared = {b.address: b.shared for s in segments.values() if s.shared for b in s.blocks}
    for segment in snapshot["segments"]:
        found = segments.get(segment["address"])
        if found is None:
            continue
        if found.shared:
            segment["shared_size"] = found.shared
        if found.paused:
            segment["is_paused"] = True
        for block in segment["blocks"]:
            if shared.get(block["address"]):
                block["shared_size"] = shared[block["address"]]
    return snapshot
