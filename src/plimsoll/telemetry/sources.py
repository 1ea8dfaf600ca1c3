"""Where a process's counters come from: plimsoll's engines, PyTorch's own allocator, a simulation.

A source only reads. It never makes a context on a GPU, and speaks of those GPUs alone that the
process has taken memory of.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from plimsoll.telemetry.counters import DeviceCounters
from plimsoll.telemetry.nvml import Nvml, plain_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core
    from plimsoll.torch.simulated.simulation import Simulation

_BETWEEN_CHARGES_SECONDS = 10.0


@dataclass(frozen=True)
class Counters:
    """What a source says at one moment; None is unknown.

    Attributes:
        devices: The GPUs in use.
        pinned_bytes: Page-locked memory of the host.
        shared_total_bytes: How much of the host's memory GPUs may use.
    """

    devices: tuple[DeviceCounters, ...] = field(default=())
    pinned_bytes: int | None = None
    shared_total_bytes: int | None = None


class Source(Protocol):
    """What a process can say of itself."""

    @property
    def allocator(self) -> str:
        """The name of its allocator."""

    def read(self) -> Counters:
        """Its counters now."""

    def snapshot(self) -> dict[str, Any]:
        """A snapshot in PyTorch's format, with the history if one is recorded."""


class EnginesInUse(Protocol):
    """The engines of this process, as `plimsoll.install` keeps them."""

    @property
    def allocator(self) -> str:
        """Which one they are of."""

    def opened(self) -> dict[int, _core.LiveEngine]:
        """Those that there are, by GPU."""


class _Elastic(Protocol):
    """An engine of the elastic allocator."""

    def fragments_bytes(self) -> int | None: ...


@dataclass(frozen=True)
class _Gpu:
    name: str
    uuid: str
    total_bytes: int


class _Gpus:
    """GPUs as CUDA describes them, and what the driver charges this process there.

    The driver is asked rarely: a context keeps its size, and the answer takes it a while.
    """

    def __init__(self) -> None:
        self._found: dict[int, _Gpu] = {}
        self._nvml = Nvml()
        self._contexts: dict[int, int | None] = {}
        self._asked: dict[int, float] = {}

    def describe(self, index: int) -> _Gpu:
        if index not in self._found:
            import torch

            found = torch.cuda.get_device_properties(index)
            self._found[index] = _Gpu(
                found.name, plain_uuid(str(getattr(found, "uuid", ""))), found.total_memory
            )
        return self._found[index]

    def context_bytes(self, index: int, dedicated: Callable[[], int]) -> int | None:
        """What the driver charges beyond the allocator's dedicated memory."""
        now = time.monotonic()
        if now - self._asked.get(index, -_BETWEEN_CHARGES_SECONDS) >= _BETWEEN_CHARGES_SECONDS:
            self._asked[index] = now
            before = dedicated()
            charge = self._nvml.charge(self.describe(index).uuid, os.getpid())
            # Only what was the same all the while can be subtracted.
            if charge is not None and before == dedicated() <= charge:
                self._contexts[index] = charge - before
        return self._contexts.get(index)


class EngineSource:
    """plimsoll's engines under PyTorch."""

    def __init__(self, engines: EnginesInUse) -> None:
        self._engines = engines
        self._gpus = _Gpus()
        self._shared_total: int | None = None

    @property
    def allocator(self) -> str:
        """The name of its allocator."""
        return self._engines.allocator

    def read(self) -> Counters:
        """Its counters now."""
        engines = self._engines.opened()
        devices = tuple(self._device(index, engines[index]) for index in sorted(engines))
        if not devices:
            return Counters()
        engine = next(iter(engines.values()))
        if self._shared_total is None:
            _, self._shared_total = engine.shared_info()
        return Counters(devices, engine.host_reserved_bytes(), self._shared_total)

    def _device(self, index: int, engine: _core.LiveEngine) -> DeviceCounters:
        def dedicated() -> int:
            statistics = engine.statistics()
            shared = statistics["shared_reserved_bytes.current"]
            return statistics["reserved_bytes.all.current"] - shared

        gpu = self._gpus.describe(index)
        return _device_counters(
            engine.statistics(),
            index=index,
            name=gpu.name,
            uuid=gpu.uuid,
            total_bytes=gpu.total_bytes,
            context_bytes=self._gpus.context_bytes(index, dedicated),
            elastic=engine if self.allocator == "elastic" and engine.fell_back is None else None,
        )

    def snapshot(self) -> dict[str, Any]:
        """A snapshot in PyTorch's format, with what is in shared memory."""
        from plimsoll.tiers.report import memory_snapshot

        return memory_snapshot()


class TorchSource:
    """PyTorch's own allocator."""

    allocator = "torch"

    def __init__(self) -> None:
        self._gpus = _Gpus()

    def read(self) -> Counters:
        """Its counters now; none before CUDA is in use."""
        import torch

        if not torch.cuda.is_initialized():
            return Counters()
        found = {index: _torch_statistics(index) for index in range(torch.cuda.device_count())}
        devices = tuple(
            self._device(index, statistics)
            for index, statistics in found.items()
            if statistics.get("reserved_bytes.all.peak")
        )
        return Counters(devices, _torch_pinned_bytes())

    def _device(self, index: int, statistics: Mapping[str, int]) -> DeviceCounters:
        def dedicated() -> int:
            return _torch_statistics(index)["reserved_bytes.all.current"]

        gpu = self._gpus.describe(index)
        return _device_counters(
            statistics,
            index=index,
            name=gpu.name,
            uuid=gpu.uuid,
            total_bytes=gpu.total_bytes,
            context_bytes=self._gpus.context_bytes(index, dedicated),
        )

    def snapshot(self) -> dict[str, Any]:
        """A snapshot in PyTorch's format, which names the cards."""
        from plimsoll.tiers.report import torch_snapshot

        return torch_snapshot()


class SimulatedSource:
    """The simulated GPUs of this process."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    @property
    def allocator(self) -> str:
        """The name of its allocator."""
        return self._simulation.allocators[0].name

    def read(self) -> Counters:
        """Its counters now."""
        simulation = self._simulation
        devices = []
        pinned = 0
        for index, (allocator, profile) in enumerate(
            zip(simulation.allocators, simulation.profiles, strict=True)
        ):
            device = _device_counters(
                allocator._engine.statistics(),
                index=index,
                name=profile.full_name,
                is_simulated=True,
                total_bytes=profile.total_bytes,
                used_bytes=allocator.gpu.dedicated_used_bytes,
                context_bytes=profile.context_bytes if index in simulation.contexts else 0,
                elastic=allocator._engine if allocator.name == "elastic" else None,
            )
            devices.append(device)
            pinned += max(allocator.gpu.shared_used_bytes - device.shared_bytes, 0)
        return Counters(tuple(devices), pinned, simulation.machine.shared_total_bytes)

    def snapshot(self) -> dict[str, Any]:
        """A snapshot in PyTorch's format."""
        return self._simulation.snapshot()


def _torch_statistics(index: int) -> dict[str, int]:
    """The sums of PyTorch's own counters by the names that our engines give them."""
    import torch

    nested = torch.cuda.memory_stats_as_nested_dict(index)
    return {
        **{
            f"{name}.all.{kind}": nested.get(name, {}).get("all", {}).get(kind, 0)
            for name in (
                "allocated_bytes",
                "active_bytes",
                "reserved_bytes",
                "inactive_split_bytes",
            )
            for kind in ("current", "peak")
        },
        "num_alloc_retries": nested.get("num_alloc_retries", 0),
        "num_ooms": nested.get("num_ooms", 0),
    }


def _torch_pinned_bytes() -> int | None:
    import torch

    nested = torch.cuda.memory.host_memory_stats_as_nested_dict()
    found = nested.get("allocated_bytes", {}).get("current")
    return None if found is None else int(found)


def _device_counters(
    statistics: Mapping[str, int],
    *,
    index: int,
    name: str,
    total_bytes: int,
    context_bytes: int | None,
    uuid: str = "",
    is_simulated: bool = False,
    used_bytes: int | None = None,
    elastic: _Elastic | None = None,
) -> DeviceCounters:
    # PyTorch's rules count what they cannot return; the elastic allocator works it out when asked.
    fragments: int | None = statistics["inactive_split_bytes.all.current"]
    if elastic is not None:
        fragments = elastic.fragments_bytes()
    return DeviceCounters(
        index=index,
        is_simulated=is_simulated,
        name=name,
        uuid=uuid,
        total_bytes=total_bytes,
        used_bytes=used_bytes,
        context_bytes=context_bytes,
        allocated_bytes=statistics["allocated_bytes.all.current"],
        active_bytes=statistics["active_bytes.all.current"],
        reserved_bytes=statistics["reserved_bytes.all.current"],
        fragments_bytes=fragments,
        shared_bytes=statistics.get("shared_reserved_bytes.current", 0),
        shared_allocated_bytes=statistics.get("shared_allocated_bytes.current", 0),
        peak_allocated_bytes=statistics["allocated_bytes.all.peak"],
        peak_reserved_bytes=statistics["reserved_bytes.all.peak"],
        num_alloc_retries=statistics["num_alloc_retries"],
        num_ooms=statistics["num_ooms"],
        num_spills=statistics.get("num_spills", 0),
    )
