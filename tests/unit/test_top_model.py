"""Tests that `top` joins NVML's figures with the processes' counters."""

from __future__ import annotations

import json
import time

from plimsoll.base.telemetry.counters import ProcessCounters
from plimsoll.integrations.top.model import GpuUse
from tests.unit.fake_nvml import FakeNvml, Gpu
from tests.unit.top_machines import GIB, MIB, busy_machine, device, machine, process

LISTS = {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"}


def only(gpu: Gpu, *processes: ProcessCounters) -> GpuUse:
    (found,) = machine(FakeNvml(gpu), *processes).gpus
    return found


def test_the_drivers_number_is_taken_apart() -> None:
    charge = 41 * GIB + 520 * MIB
    gpu = only(Gpu("GPU-aa", used=60 * GIB, compute={1: charge}), process(1, device()))
    (use,) = gpu.processes
    counters = use.counters
    assert counters is not None
    assert use.driver_bytes == charge
    assert use.context_bytes == 520 * MIB
    parts = (counters.allocated_bytes, counters.cached_bytes, counters.fragments_bytes)
    assert parts == (30 * GIB, 7 * GIB, 4 * GIB)
    assert use.context_bytes + sum(part or 0 for part in parts) == use.driver_bytes


def test_what_lies_in_shared_memory_is_not_charged() -> None:
    gpu = only(
        Gpu("GPU-aa", compute={1: 39 * GIB}),
        process(1, device(shared_bytes=3 * GIB, context_bytes=None), pinned_bytes=2 * GIB),
    )
    (use,) = gpu.processes
    assert use.context_bytes == GIB
    assert gpu.shared_used_bytes == 5 * GIB
    assert gpu.shared_total_bytes == 128 * GIB


def test_page_locked_memory_counts_once() -> None:
    found = busy_machine()
    assert [gpu.shared_used_bytes for gpu in found.gpus[:2]] == [3 * GIB, 3 * GIB + 512 * MIB]


def test_others_are_what_nvml_knows() -> None:
    gpu = only(Gpu("GPU-aa", compute={1: 5 * GIB, 2: None}))
    first, second = gpu.processes
    assert (first.pid, first.program, first.driver_bytes) == (1, "program1", 5 * GIB)
    assert (first.counters, first.context_bytes, second.driver_bytes) == (None, None, None)
    assert gpu.notes == (
        "NVML does not say how much some processes hold; it may need other rights",
    )


def test_a_process_of_two_gpus_is_on_both() -> None:
    found = busy_machine()
    assert [4711 in {use.pid for use in gpu.processes} for gpu in found.gpus] == [True, True, False]
    assert found.num_processes == 5


def test_a_context_is_worked_out_where_the_process_does_not_know_it() -> None:
    gpu = only(Gpu("GPU-aa", compute={1: 42 * GIB}), process(1, device(context_bytes=None)))
    assert gpu.processes[0].context_bytes == GIB


def test_a_charge_of_an_earlier_moment_gives_no_context() -> None:
    gpu = only(Gpu("GPU-aa", compute={1: 40 * GIB}), process(1, device(context_bytes=None)))
    assert gpu.processes[0].context_bytes is None


def test_containers_hide_processes_and_that_is_said() -> None:
    gpu = only(Gpu("GPU-aa", used=60 * GIB), process(1, device(context_bytes=None)))
    assert gpu.processes[0].driver_bytes is None
    assert gpu.processes[0].known_bytes == 41 * GIB
    assert gpu.notes == (
        "NVML does not show all processes (as in a container), so others may use this GPU too",
    )


def test_what_nvml_does_not_say_is_said() -> None:
    gpu = only(Gpu("GPU-aa", fails={"nvmlDeviceGetMemoryInfo", *LISTS}), process(1, device()))
    assert gpu.dedicated_used_bytes is None
    assert gpu.known_bytes == 41 * GIB + 520 * MIB
    assert gpu.notes == (
        "NVML does not say how much memory is in use",
        "NVML does not say which processes use it",
    )


def test_without_nvml_there_are_the_processes_own_gpus() -> None:
    found = machine(
        FakeNvml(fails="Driver Not Loaded"),
        process(1, device(context_bytes=None)),
        process(2, device(context_bytes=None)),
        process(3, device(uuid="cc", index=1)),
    )
    assert [len(gpu.processes) for gpu in found.gpus] == [2, 1]
    assert found.gpus[0].dedicated_used_bytes is None
    assert found.gpus[0].known_bytes == 82 * GIB
    assert found.notes == (
        "NVML is not available: Driver Not Loaded; only processes that plimsoll runs in are seen",
    )


def test_simulated_gpus_are_each_process_own() -> None:
    own = device(is_simulated=True, uuid="", used_bytes=42 * GIB)
    found = machine(FakeNvml(), process(1, own), process(2, own))
    assert [gpu.label for gpu in found.gpus] == ["0 of 1", "0 of 2"]
    assert all(gpu.is_simulated and gpu.dedicated_used_bytes == 42 * GIB for gpu in found.gpus)


def test_an_empty_machine_is_empty() -> None:
    found = machine(FakeNvml())
    assert (found.gpus, found.notes, found.num_processes) == ((), (), 0)


def test_processes_that_went_silent_are_marked() -> None:
    began = time.monotonic_ns() - 9_000_000_000
    silent = process(1, device(), heartbeat_ns=began, interval_ns=250_000_000)
    gpu = only(Gpu("GPU-aa"), silent)
    assert (gpu.processes[0].silent_seconds or 0) >= 9


def test_json_has_stable_keys_in_base_units() -> None:
    found = json.loads(json.dumps(busy_machine().to_dict()))
    assert found["notes"] == []
    keys = {tuple(gpu) for gpu in found["gpus"]}
    assert len(keys) == 1
    uses = [use for gpu in found["gpus"] for use in gpu["processes"]]
    assert len({tuple(use) for use in uses}) == 1
    assert set(uses[0]) >= {
        "pid", "program", "runs_plimsoll", "driver_bytes", "context_bytes", "allocated_bytes",
        "cached_bytes", "fragments_bytes", "reserved_bytes", "dedicated_bytes", "shared_bytes",
        "pinned_bytes", "num_alloc_retries", "num_ooms", "silent_seconds",
    }  # fmt: skip
    stranger = next(use for use in uses if use["pid"] == 2200)
    assert stranger["driver_bytes"] == 12 * GIB
    assert stranger["runs_plimsoll"] is False
    assert stranger["allocated_bytes"] is stranger["num_ooms"] is None
