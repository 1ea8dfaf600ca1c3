"""Makes machines for tests of `plimsoll top`, from prepared NVML data and process counters."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from plimsoll.base.telemetry.counters import DeviceCounters, ProcessCounters
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.integrations.top.model import Machine, put_together
from tests.unit.fake_nvml import FakeNvml, Gpu

MIB = 1 << 20
GIB = 1 << 30

H100 = DeviceCounters(
    index=0,
    is_simulated=False,
    name="NVIDIA H100 80GB HBM3",
    uuid="aa",
    total_bytes=79 * GIB,
    used_bytes=None,
    context_bytes=520 * MIB,
    allocated_bytes=30 * GIB,
    active_bytes=30 * GIB,
    reserved_bytes=41 * GIB,
    fragments_bytes=4 * GIB,
    shared_bytes=0,
    shared_allocated_bytes=0,
    peak_allocated_bytes=39 * GIB,
    peak_reserved_bytes=41 * GIB,
    num_alloc_retries=2,
    num_ooms=0,
    num_spills=0,
)


def device(**changes: Any) -> DeviceCounters:
    return replace(H100, **changes)


def process(pid: int, *devices: DeviceCounters, **changes: Any) -> ProcessCounters:
    made = ProcessCounters(
        pid=pid,
        start_ticks=1,
        namespace=1,
        heartbeat_ns=time.monotonic_ns(),
        interval_ns=3600 * 10**9,
        pinned_bytes=0,
        shared_total_bytes=128 * GIB,
        program="train.py --batch-size 64",
        allocator="native",
        devices=devices,
    )
    return replace(made, **changes)


def machine(library: FakeNvml, *processes: ProcessCounters) -> Machine:
    reading = Nvml(library).read()
    return put_together(reading, processes, program_of=lambda pid: f"program{pid}")


def busy_machine() -> Machine:
    """Returns a machine with two real GPUs, a simulated one, and four processes on them."""
    first = Gpu("GPU-aa", used=62 * GIB, busy=97)
    first.compute = {4711: 41 * GIB + 520 * MIB, 2200: 12 * GIB}
    first.graphics = {1100: 300 * MIB}
    second = Gpu("GPU-bb", used=40 * GIB, busy=8)
    second.compute = {4711: 8 * GIB, 5150: 31 * GIB + 8 * MIB}
    trainer = process(
        4711,
        device(),
        device(
            index=1, uuid="bb", reserved_bytes=7 * GIB + 500 * MIB, allocated_bytes=7 * GIB,
            active_bytes=7 * GIB, fragments_bytes=100 * MIB, context_bytes=None,
        ),
        pinned_bytes=3 * GIB,
    )  # fmt: skip
    server = process(
        5150,
        device(
            index=0, uuid="bb", allocated_bytes=33 * GIB, active_bytes=33 * GIB + 64 * MIB,
            reserved_bytes=34 * GIB, fragments_bytes=None, shared_bytes=3 * GIB + 512 * MIB,
            shared_allocated_bytes=3 * GIB, num_spills=17, num_ooms=1,
        ),
        allocator="elastic",
        program="serve.py --model a-very-long-name-of-a-model --port 8000",
    )  # fmt: skip
    simulated = process(
        6000,
        device(
            is_simulated=True, name="NVIDIA T4", uuid="", total_bytes=15 * GIB,
            used_bytes=9 * GIB, context_bytes=300 * MIB, allocated_bytes=6 * GIB,
            active_bytes=6 * GIB, reserved_bytes=8 * GIB + 724 * MIB, fragments_bytes=GIB,
        ),
        program="finetune.py",
        shared_total_bytes=32 * GIB,
        interval_ns=250_000_000,
        heartbeat_ns=time.monotonic_ns() - 41_510_000_000,
    )  # fmt: skip
    return machine(FakeNvml(first, second), trainer, server, simulated)
