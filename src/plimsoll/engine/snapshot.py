"""Snapshots in PyTorch's format, which its memory viewer reads.

The format is that of `torch.cuda.memory._snapshot()`, with a few additional keys. Segments, blocks
and trace entries with bytes in shared memory have a "shared_size". A segment that `pause` moved off
the card has "is_paused". The settings name the "allocator" and the "torch_version". The elastic
allocator maps memory in granules of 2 MiB. The segments in its snapshots do not show the granules.
So the settings also have "fragments_bytes": for each device, the free bytes in granules that are
partly in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Sequence


class Stacks(Protocol):
    """Maps the stack number of an event to that event's call stack.

    A call stack is a list of frames (file, line, function), the innermost first.
    """

    def __getitem__(self, context: int, /) -> list[tuple[str, int, str]]: ...


def snapshot_dict(
    engine: _core.Engine,
    device: int,
    conf: str,
    config: _core.AllocatorConfig,
    stacks: Stacks,
    allocator: str,
    version: str,
) -> dict[str, Any]:
    """Returns the snapshot of one allocator as PyTorch `version` would write it."""
    # Other threads may be allocating, so nothing is done between reading segments and history.
    segments, history = engine.segments(), engine.history()
    snapshot: dict[str, Any] = {
        "segments": [_segment(segment, device, stacks) for segment in segments],
        "device_traces": [*([] for _ in range(device)), _trace(history, stacks)],
        "allocator_settings": settings_dict(conf, config, allocator, version),
        "external_annotations": [],
    }
    if allocator == "elastic":
        note_fragments(snapshot["allocator_settings"], device, engine.fragments_bytes())
    if _follows("writes_host_segments", version):
        # PyTorch writes these two keys into every snapshot. Here they are empty, because the engine
        # serves no pinned memory.
        snapshot |= {"host_segments": [], "host_traces": []}
    return snapshot


def _follows(rule: str, version: str) -> bool:
    return tuple(int(part) for part in version.split(".")) >= _core.torch_rules()[rule]


def _frames(context: int, stacks: Stacks) -> list[dict[str, Any]]:
    return [
        {"filename": filename, "line": line, "name": name}
        for filename, line, name in stacks[context]
    ]


def _segment(segment: _core.SegmentInfo, device: int, stacks: Stacks) -> dict[str, Any]:
    allocated = [block for block in segment.blocks if block.state == "active_allocated"]
    active = [block for block in segment.blocks if block.state != "inactive"]
    entry: dict[str, Any] = {
        "device": device,
        "address": segment.address,
        "total_size": segment.total_size,
        "allocated_size": sum(block.size for block in allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (segment.pool.first, segment.pool.second),
        "is_expandable": segment.expandable,
        "frames": _frames(segment.context, stacks),
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": block.state,
                "frames": _frames(block.context, stacks),
            }
            for block in segment.blocks
        ],
    }
    add_tiers(entry, segment)
    return entry


def note_fragments(settings: dict[str, Any], device: int, fragments: int | None) -> None:
    """Adds the free bytes in partly used granules, if they are known, to a snapshot's settings."""
    if fragments is not None:
        settings.setdefault("fragments_bytes", {})[str(device)] = fragments


def add_tiers(entry: dict[str, Any], segment: _core.SegmentInfo) -> None:
    """Adds "is_paused" and "shared_size" to a segment's entry, where they apply."""
    if segment.paused:
        entry["is_paused"] = True
    if not segment.shared:
        return
    entry["shared_size"] = segment.shared
    shared = {block.address: block.shared for block in segment.blocks if block.shared}
    for block in entry["blocks"]:
        if block["address"] in shared:
            block["shared_size"] = shared[block["address"]]


def _trace(
    history: Sequence[tuple[str, int, int, int, int, int, int, int, int]], stacks: Stacks
) -> list[dict[str, Any]]:
    entries = []
    for event in history:
        action, address, size, stream, first, second, time_us, context, shared = event
        entry: dict[str, Any] = {"action": action}
        if action == "oom":
            entry["device_free"] = address
        elif action != "snapshot":
            entry["addr"] = address
        entry |= {
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "pool_id": (first, second),
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": _frames(context, stacks),
        }
        if shared:
            entry["shared_size"] = shared
        entries.append(entry)
    return entries


def settings_dict(
    conf: str, config: _core.AllocatorConfig, allocator: str, version: str
) -> dict[str, Any]:
    """Returns a snapshot's `allocator_settings`, with the allocator and PyTorch's version added."""
    divisions = config.roundup_power2_divisions
    return {
        "allocator": allocator,
        "torch_version": version,
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "max_split_size": -1 if config.max_split_size is None else config.max_split_size,
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "roundup_power2_divisions": {str(1 << i): value for i, value in enumerate(divisions)},
    }


def segments_now(engine: _core.Engine) -> list[_core.SegmentInfo]:
    """Returns all segments, and records a `snapshot` event at the same moment."""
    return engine.segments_at_snapshot()
