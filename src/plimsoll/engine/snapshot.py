"""Snapshots in PyTorch's format, which its memory viewer reads.

The format is that of `torch.cuda.memory._snapshot()`, PyTorch 2.9 to 2.13. What of a segment, a
block or an entry is in shared memory stands beside it as "shared_size", where it is anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from plimsoll import _core


class Stacks(Protocol):
    """Call stacks by the number that the engine keeps, innermost frame first."""

    def __getitem__(self, context: int, /) -> list[tuple[str, int, str]]: ...


def snapshot_dict(
    engine: _core.Engine,
    device: int,
    conf: str,
    config: _core.AllocatorConfig,
    stacks: Stacks,
) -> dict[str, Any]:
    """The segments, the history and the settings of one allocator."""
    return {
        "segments": [_segment(segment, device, stacks) for segment in engine.segments()],
        "device_traces": [*([] for _ in range(device)), _trace(engine, stacks)],
        "allocator_settings": _settings(conf, config),
        "external_annotations": [],
    }


def _frames(context: int, stacks: Stacks) -> list[dict[str, Any]]:
    return [
        {"filename": filename, "line": line, "name": name}
        for filename, line, name in stacks[context]
    ]


def _segment(segment: _core.SegmentInfo, device: int, stacks: Stacks) -> dict[str, Any]:
    allocated = [block for block in segment.blocks if block.state == "active_allocated"]
    active = [block for block in segment.blocks if block.state != "inactive"]
    return {
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
                **_shared(block.shared),
            }
            for block in segment.blocks
        ],
        **_shared(segment.shared),
    }


def _shared(size: int) -> dict[str, int]:
    return {"shared_size": size} if size else {}


def _trace(engine: _core.Engine, stacks: Stacks) -> list[dict[str, Any]]:
    entries = []
    for event in engine.history():
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
            **_shared(shared),
        }
        entries.append(entry)
    return entries


def _settings(conf: str, config: _core.AllocatorConfig) -> dict[str, Any]:
    divisions = config.roundup_power2_divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "max_split_size": -1 if config.max_split_size is None else config.max_split_size,
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "roundup_power2_divisions": {str(1 << i): value for i, value in enumerate(divisions)},
    }
