"""Triton's driver for simulated GPUs, in place of NVIDIA's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.chips import chip_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.engine.gpus.profiles import GpuProfile
    from plimsoll.torch.simulated.simulation import Simulation

_WARP = 32
_REGISTERS = 65536
"""Registers of a multiprocessor, on all cards since compute capability 3.0."""
_BUS_BITS = 1024
_BENCHMARK_MS = 1
"""Milliseconds to warm up and to measure: few, because repeated calls take the same memory."""


def add_driver(simulation: Simulation, module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `triton.backends.nvidia.driver`, and replaces its driver by one that needs no GPU.

    Triton expects exactly one driver class in the module, so the new class takes the name of the
    old one. Triton's compiler for NVIDIA's GPUs is not replaced.
    """
    execute()
    real = module.CudaDriver

    class SimulatedDriver(module.GPUDriver):  # type: ignore[misc, name-defined]
        """Tells Triton each simulated GPU's target architecture, properties and current stream."""

        get_active_torch_device = real.get_active_torch_device
        get_device_interface = real.get_device_interface
        map_python_to_cpp_type = real.map_python_to_cpp_type
        get_empty_cache_for_benchmark = real.get_empty_cache_for_benchmark
        clear_cache = real.clear_cache

        def __init__(self) -> None:
            super().__init__()
            self.utils = _Utilities(simulation)

        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> Any:
            from triton.backends.compiler import GPUTarget

            device = int(simulation.library.lib.plimsoll_current_device())
            major, minor = simulation.profiles[device].compute_capability
            return GPUTarget("cuda", major * 10 + minor, _WARP)

        def get_benchmarker(self) -> Any:
            from triton.testing import do_bench

            return partial(do_bench, warmup=_BENCHMARK_MS, rep=_BENCHMARK_MS)

    module.CudaDriver = SimulatedDriver  # type: ignore[attr-defined]


class _Utilities:
    """The functions of a GPU's driver that Triton and Inductor call."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Returns sizes in bytes and clocks in kHz.

        The width of the memory's bus is arbitrary. The memory's clock is chosen so that the
        width and the clock together give the card's bandwidth.
        """
        profile = self._simulation.profiles[device]
        bytes_per_clock = 2 * _BUS_BITS // 8
        return {
            "max_shared_mem": profile.shared_memory_per_block_optin_bytes,
            "max_num_regs": _REGISTERS,
            "multiprocessor_count": profile.multiprocessors,
            "warpSize": _WARP,
            "sm_clock_rate": round(1000 * clock_mhz(profile)),
            "mem_clock_rate": round(profile.memory_bandwidth_bytes_per_s / bytes_per_clock / 1000),
            "mem_bus_width": _BUS_BITS,
        }


def clock_mhz(profile: GpuProfile) -> float:
    """Returns the multiprocessors' clock in MHz at which a card reaches its `fp32_flops`."""
    lanes = chip_of(profile.compute_capability).lanes
    return profile.fp32_flops / (2 * lanes * profile.multiprocessors) * 1e-6
