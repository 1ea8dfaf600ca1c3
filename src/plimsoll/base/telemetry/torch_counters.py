"""Reads the counters of a PyTorch program on a real GPU, from plimsoll's or PyTorch's allocator."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from plimsoll.base.telemetry.counter_source import Counters, device_counters
from plimsoll.base.telemetry.nvml import Nvml, plain_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core
    from plimsoll.base.telemetry.counters import DeviceCounters

_BETWEEN_CHARGES_SECONDS = 10.0


class EnginesInUse(Protocol):
    """The engines that `plimsoll.install` put into this process.

    An engine is plimsoll's allocator for one GPU.
    """

    @property
    def allocator(self) -> str:
        """The name of the allocator that `plimsoll.install` put in place, such as "elastic"."""

    def opened(self) -> dict[int, _core.Engine]:
        """Returns the engines of all GPUs used so far, by the GPU's number."""


@dataclass(frozen=True)
class _Gpu:
    name: str
    uuid: str
    total_bytes: int


class _Gpus:
    """The GPUs as CUDA describes them, and the size of this process's context on each.

    Asks the driver for the size at most every 10 seconds, because the driver's answer is slow and
    the size rarely changes.
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
        """Returns the size of this process's CUDA context; None if it is not known.

        The size is what the driver charges to this process, minus `dedicated()`.

        Args:
            index: PyTorch's number of the GPU.
            dedicated: Returns the bytes that the allocator has reserved on the card.
        """
        now = time.monotonic()
        if now - self._asked.get(index, -_BETWEEN_CHARGES_SECONDS) >= _BETWEEN_CHARGES_SECONDS:
            self._asked[index] = now
            before = dedicated()
            charge = self._nvml.charge(self.describe(index).uuid, os.getpid())
            # If the allocator's memory changed while the driver answered, `charge - before` is not
            # the size of the context.
            if charge is not None and before == dedicated() <= charge:
                self._contexts[index] = charge - before
        return self._contexts.get(index)


class EngineCounters:
    """The counters of plimsoll's engines in a PyTorch program."""

    def __init__(self, engines: EnginesInUse) -> None:
        self._engines = engines
        self._gpus = _Gpus()
        self._shared_total: int | None = None

    @property
    def allocator(self) -> str:
        """The name of the allocator that `plimsoll.install` put in place, such as "elastic"."""
        return self._engines.allocator

    def read(self) -> Counters:
        """Returns the counters now."""
        engines = self._engines.opened()
        devices = tuple(self._device(index, engines[index]) for index in sorted(engines))
        if not devices:
            return Counters()
        engine = next(iter(engines.values()))
        if self._shared_total is None:
            _, self._shared_total = engine.shared_info()
        return Counters(devices, engine.host_reserved_bytes(), self._shared_total)

    def _device(self, index: int, engine: _core.Engine) -> DeviceCounters:
        def dedicated() -> int:
            statistics = engine.statistics()
            shared = statistics["shared_reserved_bytes.current"]
            return statistics["reserved_bytes.all.current"] - shared

        gpu = self._gpus.describe(index)
        return device_counters(
            engine.statistics(),
            index=index,
            name=gpu.name,
            uuid=gpu.uuid,
            total_bytes=gpu.total_bytes,
            context_bytes=self._gpus.context_bytes(index, dedicated),
            elastic=engine if self.allocator == "elastic" and engine.fell_back is None else None,
        )


class TorchCounters:
    """The counters of PyTorch's own allocator."""

    allocator = "torch"

    def __init__(self) -> None:
        self._gpus = _Gpus()

    def read(self) -> Counters:
        """Returns the present counters, without devices if CUDA is not initialized yet."""
        import torch

        if not torch.cuda.is_initialized():
            return Counters()
        found = {index: _torch_statistics(index) for index in range(torch.cuda.device_count())}
        devices = tuple(
            self._device(index, statistics)
            for index, statistics in found.items()
            if statistics.get("reserved_bytes.all.peak")
        )
        return Counters(devices, torch_pinned_bytes())

    def _device(self, index: int, statistics: Mapping[str, int]) -> DeviceCounters:
        def dedicated() -> int:
            return _torch_statistics(index)["reserved_bytes.all.current"]

        gpu = self._gpus.describe(index)
        return device_counters(
            statistics,
            index=index,
            name=gpu.name,
            uuid=gpu.uuid,
            total_bytes=gpu.total_bytes,
            context_bytes=self._gpus.context_bytes(index, dedicated),
        )


def _torch_statistics(index: int) -> dict[str, int]:
    """Returns PyTorch's counters under the keys that plimsoll's engines use for theirs.

    Each counter is the sum over the pools of small and of large blocks.
    """
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


def torch_pinned_bytes(kind: Literal["current", "peak"] = "current") -> int | None:
    """Returns the bytes of page-locked memory that PyTorch holds; None if they are unknown."""
    import torch

    nested = torch.cuda.memory.host_memory_stats_as_nested_dict()
    found = nested.get("allocated_bytes", {}).get(kind)
    return None if found is None else int(found)
