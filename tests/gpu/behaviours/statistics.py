"""Behaviours of the counters of `torch.cuda`."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from tests.gpu.behaviours.behaviour import (
    Observed,
    UnavailableError,
    anything,
    at_most,
    behaviour,
    same_type,
)
from tests.gpu.behaviours.tools import MIB, empty, error_of, stat


@behaviour(elastic={"reserved": at_most, "max_reserved": at_most})
def allocated_and_reserved_follow_tensors() -> Observed:
    allocated, reserved = [], []

    def look() -> None:
        allocated.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())

    look()
    first = empty(24 * MIB)
    look()
    second = empty(12 * MIB)
    look()
    del first
    look()
    third = empty(1000)
    look()
    del second, third
    look()
    torch.cuda.empty_cache()
    look()
    return {
        "allocated": allocated,
        "reserved": reserved,
        "max_allocated": torch.cuda.max_memory_allocated(),
        "max_reserved": torch.cuda.max_memory_reserved(),
        "at_rest": [allocated[-1], reserved[-1]],
    }


@behaviour()
def sizes_are_rounded_as_in_pytorch() -> Observed:
    rounded, requested = [], []
    for size in (1, 511, 512, 513, 1000, MIB, 12 * MIB):
        torch.cuda.empty_cache()
        tensor = empty(size)
        rounded.append(torch.cuda.memory_allocated())
        requested.append(stat("requested_bytes.all.current"))
        del tensor
    return {"rounded": rounded, "requested": requested}


@behaviour()
def statistics_have_all_keys() -> Observed:
    flat = torch.cuda.memory_stats()
    nested = torch.cuda.memory_stats_as_nested_dict()
    return {
        "flat": sorted(flat),
        "types": sorted({type(value).__name__ for value in flat.values()}),
        "nested": sorted(nested),
    }


@behaviour()
def requests_are_counted_by_pool() -> Observed:
    tensors = [empty(1000), empty(3 * MIB), empty(30 * MIB)]
    del tensors[1]
    names = [
        f"{what}.{pool}.{field}"
        for what in ("allocation", "requested_bytes", "allocated_bytes", "active", "active_bytes")
        for pool in ("all", "small_pool", "large_pool")
        for field in ("current", "peak", "allocated", "freed")
    ]
    return {name: stat(name) for name in names}


@behaviour(elastic={"values": anything})
def segments_and_splits_are_counted() -> Observed:
    tensors = [empty(1000), empty(3 * MIB), empty(30 * MIB)]
    names = [
        f"{what}.all.{field}"
        for what in ("segment", "inactive_split", "inactive_split_bytes")
        for field in ("current", "peak", "allocated", "freed")
    ]
    del tensors
    return {"values": {name: stat(name) for name in [*names, "num_device_alloc"]}}


@behaviour()
def an_empty_tensor_takes_no_memory() -> Observed:
    tensor = torch.empty(0, device="cuda")
    return {
        "pointer": tensor.data_ptr(),
        "allocated": torch.cuda.memory_allocated(),
        "requests": stat("allocation.all.allocated"),
    }


@behaviour(elastic={"reserved": at_most})
def peaks_start_again_at_what_is_current() -> Observed:
    kept, freed = empty(12 * MIB), empty(24 * MIB)
    del freed
    before = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seen = {
        "before": before,
        "after": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "requests": stat("allocation.all.peak"),
    }
    del kept
    return seen


@behaviour()
def accumulated_counts_start_again_at_nothing() -> Observed:
    kept, freed = empty(12 * MIB), empty(24 * MIB)
    del freed
    torch.cuda.reset_accumulated_memory_stats()
    names = ("allocation.all", "allocated_bytes.all", "requested_bytes.all")
    seen: Observed = {
        f"{name}.{field}": stat(f"{name}.{field}")
        for name in names
        for field in ("current", "peak", "allocated", "freed")
    }
    seen |= {name: stat(name) for name in ("num_ooms", "num_alloc_retries", "num_device_alloc")}
    del kept
    return seen


@behaviour()
def the_summary_has_all_rows() -> Observed:
    tensor = empty(12 * MIB)

    def rows(*, abbreviated: bool) -> list[str]:
        text: str = torch.cuda.memory_summary(abbreviated=abbreviated)
        return [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") > 1]

    seen: Observed = {"long": rows(abbreviated=False), "short": rows(abbreviated=True)}
    del tensor
    return seen


@behaviour()
def deprecated_names_work_and_warn() -> Observed:
    tensor = empty(12 * MIB)
    seen: Observed = {}
    functions: dict[str, Any] = {
        "memory_cached": torch.cuda.memory_cached,
        "max_memory_cached": torch.cuda.max_memory_cached,
        "reset_max_memory_allocated": torch.cuda.reset_max_memory_allocated,
        "reset_max_memory_cached": torch.cuda.reset_max_memory_cached,
    }
    for name, function in functions.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = function()
        kind = type(value).__name__
        seen[name] = [kind, sorted({warning.category.__name__ for warning in caught})]
    del tensor
    return seen


@behaviour(
    either=dict.fromkeys(
        ("memory_allocated", "memory_stats", "reset_peak_memory_stats", "fraction"), same_type
    )
)
def a_device_that_is_not_there_is_an_error() -> Observed:
    return {
        "memory_allocated": error_of(lambda: torch.cuda.memory_allocated(99)),
        "memory_stats": error_of(lambda: torch.cuda.memory_stats(99)),
        "reset_peak_memory_stats": error_of(lambda: torch.cuda.reset_peak_memory_stats(99)),
        "fraction": error_of(lambda: torch.cuda.set_per_process_memory_fraction(0.5, 99)),
        "cpu": error_of(lambda: torch.cuda.memory_allocated("cpu")),
    }


@behaviour()
def storages_are_resized() -> Observed:
    tensor = torch.full((3 * MIB,), 5.0, device="cuda")
    storage, size = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
    allocated = [torch.cuda.memory_allocated()]
    for bytes_wanted in (0, size, 2 * size):
        storage.resize_(bytes_wanted)
        allocated.append(torch.cuda.memory_allocated())
    tensor.fill_(2)
    return {"allocated": allocated, "sum": tensor.sum().item()}


@behaviour(elastic={"reserved": at_most})
def the_accelerators_names_say_the_same() -> Observed:
    accelerator: Any = getattr(torch, "accelerator", None)
    if not hasattr(accelerator, "memory_allocated"):
        raise UnavailableError("this PyTorch's torch.accelerator has no memory functions")
    kept, freed = empty(12 * MIB), empty(24 * MIB)
    del freed
    seen: Observed = {
        "allocated": [accelerator.memory_allocated(), accelerator.max_memory_allocated()],
        "reserved": [accelerator.memory_reserved(), accelerator.max_memory_reserved()],
        "keys": sorted(accelerator.memory_stats()),
    }
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    seen["after"] = [
        accelerator.max_memory_allocated(),
        accelerator.max_memory_reserved(),
        stat("allocation.all.allocated"),
    ]
    del kept
    return seen


@behaviour()
def host_statistics_are_pytorchs_own() -> Observed:
    if not hasattr(torch.cuda, "host_memory_stats"):
        raise UnavailableError("this PyTorch has no statistics of pinned memory")
    before = torch.cuda.host_memory_stats()
    pinned = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
    after = torch.cuda.host_memory_stats()
    seen: Observed = {
        "keys": sorted(after),
        # Leave `active_requests.peak` out: plimsoll reports the peak of the total. PyTorch adds up
        # the peaks of its size classes, which can occur at different times.
        "changed": sorted(
            name
            for name in after
            if "time" not in name
            and name != "active_requests.peak"
            and after[name] != before.get(name)
        ),
    }
    del pinned
    return seen


@behaviour(either={"backend": anything})
def the_backend_has_a_name() -> Observed:
    return {"backend": torch.cuda.get_allocator_backend()}


@behaviour()
def processes_of_the_card_are_listed() -> Observed:
    text = torch.cuda.list_gpu_processes()
    return {"first_line": text.splitlines()[0], "kind": type(text).__name__}


@behaviour()
def numbers_of_the_card_are_the_drivers() -> Observed:
    free, total = torch.cuda.mem_get_info()
    return {
        "total": total,
        "is_total_of_properties": total <= torch.cuda.get_device_properties(0).total_memory,
        "is_free_sensible": 0 < free < total,
        "uuid_is_there": bool(re.search("[0-9a-f]", str(torch.cuda.get_device_properties(0).uuid))),
    }


@behaviour()
def every_visible_device_has_statistics_of_its_own() -> Observed:
    count = torch.cuda.device_count()
    before = [torch.cuda.memory_allocated(index) for index in range(count)]
    last = torch.empty(12 * MIB, dtype=torch.uint8, device=f"cuda:{count - 1}")
    after = [torch.cuda.memory_allocated(index) for index in range(count)]
    seen: Observed = {"change": [b - a for a, b in zip(before, after, strict=True)]}
    del last
    return seen
