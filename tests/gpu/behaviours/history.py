"""Behaviours of recorded history and snapshots."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.gpu.behaviours.behaviour import (
    Observed,
    UnavailableError,
    anything,
    at_most,
    behaviour,
)
from tests.gpu.behaviours.tools import MIB, blocks, empty, error_of, room_for

ODD = 13 * MIB + 17  # a size that no other request has


def record(*arguments: Any, **options: Any) -> None:
    """Starts or stops recording the history, by default without C++ stacks."""
    options.setdefault("stacks", "python")
    torch.cuda.memory._record_memory_history(*arguments, **options)


def events() -> list[dict[str, Any]]:
    """Returns the history of the first GPU."""
    history: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    return history


def of_size(history: list[dict[str, Any]], size: int = ODD) -> list[dict[str, Any]]:
    """Returns the events with this size."""
    return [event for event in history if event["size"] == size]


def names_this_file(entry: dict[str, Any]) -> bool:
    """Returns whether the stack of an event or a block contains this file."""
    return any(frame["filename"] == __file__ for frame in entry.get("frames", []))


def live_block(size: int = ODD) -> dict[str, Any]:
    """Returns the live block of the only request of this size."""
    (block,) = [
        block
        for block in blocks(torch.cuda.memory_snapshot())
        if block["requested_size"] == size and block["state"] == "active_allocated"
    ]
    return block


@behaviour()
def one_tensor_makes_three_events() -> Observed:
    record("all", clear_history=True)
    tensor = empty(ODD)
    address = tensor.data_ptr()
    del tensor
    history = of_size(events())
    requested = [event for event in history if event["action"] == "alloc"]
    frees = [event for event in history if event["action"] != "alloc"]
    times = [event["time_us"] for event in history]
    return {
        "actions": [event["action"] for event in history],
        "keys": [sorted(event) for event in history],
        "same_address": {event["addr"] for event in history} == {address},
        "streams": [event["stream"] for event in history],
        "in_order": times == sorted(times),
        "stacks": [names_this_file(event) for event in requested + frees],
        "compile_context": [event.get("compile_context") for event in history],
        "pools": [event.get("pool_id", event.get("segment_pool_id")) for event in history],
    }


@behaviour(elastic={"sizes": anything})
def segments_have_events() -> Observed:
    record("all", clear_history=True)
    tensor = empty(ODD)
    del tensor
    torch.cuda.empty_cache()
    history = events()
    taken = [e for e in history if e["action"] in ("segment_alloc", "segment_map")]
    given = [e for e in history if e["action"] in ("segment_free", "segment_unmap")]
    return {
        "sizes": [e["size"] for e in taken],
        "is_any": bool(taken),
        "balance": sum(e["size"] for e in taken) - sum(e["size"] for e in given),
        "stacks": all(names_this_file(event) for event in taken + given),
        "keys": sorted({key for event in taken + given for key in event}),
    }


@behaviour()
def state_keeps_stacks_and_no_events() -> Observed:
    record("state", clear_history=True)
    tensor = empty(ODD)
    seen: Observed = {"events": len(events()), "stack": names_this_file(live_block())}
    del tensor
    return seen


@behaviour(own_process=True)
def a_segment_has_a_stack_until_a_part_of_it_is_taken() -> Observed:
    def stacks() -> list[bool]:
        return [names_this_file(segment) for segment in torch.cuda.memory_snapshot()]

    record("state")
    whole = empty(40 * MIB)
    seen: Observed = {"whole": stacks()}
    del whole
    seen["free"] = stacks()
    part = empty(MIB + MIB // 2)
    seen["part"] = stacks()
    del part
    seen["again"] = stacks()
    return seen


@behaviour()
def recording_stops_and_starts() -> Observed:
    counts = []
    record("all", clear_history=True)
    first = empty(ODD)
    counts.append(len(of_size(events())))
    record(None)
    second = empty(ODD + 1)
    counts.append(len(of_size(events(), ODD + 1)))
    record("all")
    counts.append(len(of_size(events())))
    third = empty(ODD + 2)
    counts.append(len(of_size(events(), ODD + 2)))
    record("all", clear_history=True)
    counts.append(len(of_size(events(), ODD + 2)))
    del first, second, third
    counts.append(len(of_size(events())))
    return {"counts": counts}


@behaviour()
def contexts_choose_the_events_with_stacks() -> Observed:
    seen: Observed = {}
    for context in (None, "state", "alloc", "all"):
        record("all", context=context, clear_history=True)
        tensor = empty(ODD)
        block = live_block()
        del tensor
        seen[str(context)] = [
            names_this_file(block),
            [[event["action"], names_this_file(event)] for event in of_size(events())],
        ]
    return seen


@behaviour()
def stacks_can_include_cpp() -> Observed:
    record("all", stacks="all", clear_history=True)
    tensor = empty(ODD)
    frames = live_block()["frames"]
    del tensor
    return {
        "is_python": any(frame["filename"] == __file__ for frame in frames),
        "is_cpp": any("at::" in frame["name"] for frame in frames),
        "keys": sorted(frames[0]),
    }


@behaviour()
def a_full_history_keeps_the_newest() -> Observed:
    record("all", context=None, max_entries=10, clear_history=True)
    for i in range(50):
        empty(12 * MIB + i)
    history = events()
    times = [event["time_us"] for event in history]
    record("all", context=None, max_entries=1 << 20, clear_history=True)
    return {
        "length": len(history),
        "in_order": times == sorted(times),
        "events": [[event["action"], event["size"]] for event in history],
    }


@behaviour()
def chosen_actions_are_skipped() -> Observed:
    function = torch.cuda.memory._record_memory_history
    if "skip_actions" not in inspect.signature(function).parameters:
        raise UnavailableError("this PyTorch cannot skip actions")
    record("all", clear_history=True, skip_actions=["free_requested", "segment_alloc"])
    empty(ODD)
    history = events()
    record("all", clear_history=True, skip_actions=[])
    return {
        "actions": [event["action"] for event in of_size(history)],
        "is_segment_alloc_there": any(event["action"] == "segment_alloc" for event in history),
        "error": error_of(lambda: record("all", skip_actions=["nonsense"])),
    }


@behaviour()
def bad_requests_are_refused() -> Observed:
    return {
        "enabled": error_of(lambda: record("some")),
        "context": error_of(lambda: record("all", context="some")),
        "stacks": error_of(lambda: record("all", stacks="some")),
    }


@behaviour()
def running_out_is_an_event() -> Observed:
    record("all", clear_history=True)
    with room_for(64 * MIB):
        error = error_of(lambda: empty(512 * MIB + 5))[0]
    ooms = [event for event in events() if event["action"] == "oom"]
    return {
        "error": error,
        "sizes": [event["size"] for event in ooms],
        "keys": [sorted(event) for event in ooms],
        "stacks": [names_this_file(event) for event in ooms],
    }


@behaviour()
def metadata_goes_with_events() -> Observed:
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        raise UnavailableError("this PyTorch has no metadata of memory")
    record("all", clear_history=True)
    torch.cuda.memory._set_memory_metadata("phase one")
    read = torch.cuda.memory._get_memory_metadata()
    empty(ODD)
    torch.cuda.memory._set_memory_metadata("")
    empty(ODD + 1)
    history = events()
    return {
        "read": read,
        "first": [event.get("user_metadata") for event in of_size(history)],
        "second": [event.get("user_metadata") for event in of_size(history, ODD + 1)],
    }


@behaviour()
def annotations_are_kept() -> Observed:
    record("all", clear_history=True, global_record_annotations=True)
    with torch.profiler.record_function("a step"):
        empty(ODD)
    snapshot = torch.cuda.memory._snapshot()
    record(None)
    annotations = snapshot.get("external_annotations", [])
    ours = [entry for entry in annotations if entry.get("name") == "a step"]
    return {
        "keys": sorted({key for entry in ours for key in entry}),
        "stages": [entry.get("stage") for entry in ours],
        "devices": [entry.get("device") for entry in ours],
    }


@behaviour()
def a_snapshot_has_the_structure_of_pytorchs() -> Observed:
    record("all", clear_history=True)
    tensors = [empty(size) for size in (1000, 3 * MIB, ODD)]
    del tensors[1]
    snapshot = torch.cuda.memory._snapshot()
    segments = [segment for segment in snapshot["segments"] if segment["device"] == 0]
    every = blocks(segments)
    tiles, sums = [], []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            tiles.append(block.get("address", address) == address)
            address += block["size"]
        tiles.append(address == segment["address"] + segment["total_size"])
        live = [b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"]
        sums.append(sum(live) == segment["allocated_size"])
    return {
        "keys": sorted(snapshot),
        "segment_keys": sorted({key for segment in segments for key in segment}),
        "block_keys": sorted({key for block in every for key in block}),
        "settings": snapshot.get("allocator_settings"),
        "devices": len(snapshot["device_traces"]),
        "tiles": all(tiles),
        "sums": all(sums),
        "states": sorted({block["state"] for block in every} - {"inactive"}),
        "requested": sorted(
            block["requested_size"] for block in every if block["state"] == "active_allocated"
        ),
        "types": sorted({segment["segment_type"] for segment in segments} - {"small"}),
        "pools": sorted({str(tuple(segment["segment_pool_id"])) for segment in segments}),
        "allocated": sum(segment["allocated_size"] for segment in segments)
        - torch.cuda.memory_allocated(),
        "reserved": sum(segment["total_size"] for segment in segments)
        - torch.cuda.memory_reserved(),
        "points_into_a_block": sorted(
            block["requested_size"]
            for tensor in tensors
            for block in every
            if block.get("address") == tensor.data_ptr()
        ),
    }


@behaviour(elastic={"total_sizes": anything, "expandable": anything})
def a_snapshot_without_history_has_segments() -> Observed:
    tensor = empty(ODD)
    segments = torch.cuda.memory_snapshot()
    seen: Observed = {
        "keys": sorted({key for segment in segments for key in segment}),
        "total_sizes": sorted(segment["total_size"] for segment in segments),
        "expandable": sorted({segment["is_expandable"] for segment in segments}),
        "streams": sorted({segment["stream"] for segment in segments}),
    }
    del tensor
    return seen


@behaviour(elastic={"sizes": at_most})
def taking_a_snapshot_is_an_event() -> Observed:
    record("all", clear_history=True)
    tensor = empty(ODD)
    events()
    snapshots = [event for event in events() if event["action"] == "snapshot"]
    seen: Observed = {
        "count": len(snapshots),
        "sizes": [event["size"] for event in snapshots],
        "keys": [sorted(event) for event in snapshots],
    }
    del tensor
    return seen


@behaviour(own_process=True, elastic={"replay": anything})
def a_dumped_snapshot_is_replayed() -> Observed:
    record("all")
    kept = [empty((i % 7 + 1) * 700_000) for i in range(200)]
    del kept[::3]
    kept += [empty(i * 9000 + 1) for i in range(100)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        done = subprocess.run(
            [sys.executable, "-m", "plimsoll", "replay", "--json", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return {"read": False, "replay": [done.returncode, done.stdout[-500:], done.stderr[-2000:]]}
    rows = answer if isinstance(answer, list) else answer.get("results", [answer])
    return {
        "read": done.returncode in (0, 1),
        "replay": [done.returncode, [row.get("matches_recording") for row in rows]],
    }
