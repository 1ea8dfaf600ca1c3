"""Measures the host memory that this process would use on a machine with a GPU.

The figure is the growth of the process's own memory since before the script. It leaves out the
simulation's own data, and the import of PyTorch, whose builds for GPUs have another size. It adds
memory that a machine with a GPU would need, but that this process lacks: the contents of large host
tensors, and page-locked and shared memory that was never written. Mapped files do not count, since
the kernel can drop them.

A thread reads the memory several times a second. The kernel keeps the maximum between readings.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from plimsoll.base.telemetry.job import launched_as
from plimsoll.prediction.child.forked import ForkedProcesses
from plimsoll.prediction.child.loader_batches import LoaderBatches
from plimsoll.prediction.child.resident import resident
from plimsoll.prediction.host_use import (
    CONTEXT,
    CUBLAS,
    CUDNN,
    FURTHER_CONTEXT,
    PYTHON,
    TORCH,
    HostUse,
)

if TYPE_CHECKING:
    from plimsoll.prediction.child.labels import BlockLabels
    from plimsoll.torch.simulated.simulation import Simulation

_LEAST_SECONDS, _MOST_SECONDS = 0.05, 0.5
"""The least and the most seconds between two readings of the process's memory."""
_SHARE = 0.006
"""The largest share of the run time that may be spent on readings."""
_EVENT_BYTES = 72
"""The size of TraceEvent in the core's events/event.h."""
_LABEL_BYTES = 160
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "_scaled_mm"}


class HostWatch:
    """Watches the memory of this process and of those forked from it, from `begin` to `stop`."""

    def __init__(self, simulation: Simulation, labels: BlockLabels) -> None:
        self._simulation = simulation
        self._labels = labels
        self._process = os.getpid()
        self._forked = ForkedProcesses(simulation)
        self._loaders = LoaderBatches(simulation.watchers)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._before = self._own = 0
        self._before_import: int | None = None
        self._peak = self._least = 0
        self._has_begun = False

    def begin(self) -> None:
        """Begins to watch. Call it before the script has any memory."""
        memory = resident()
        if memory is None:
            return
        self._before = self._own = memory.own
        self._has_begun = True
        guarded = self._simulation.watchers.guarded
        comes = guarded("the host's memory before PyTorch", self._torch_comes)
        sys.meta_path.insert(0, _BeforeTorch(comes))
        self._simulation.after_import(
            guarded("the host's memory after PyTorch's import", self._torch_came)
        )
        run = guarded("the host's memory", self._run)
        threading.Thread(target=run, daemon=True).start()

    def stop(self) -> HostUse | None:
        """Ends the watch and returns the memory use; None if unknown, or in a forked process."""
        if not self._has_begun or os.getpid() != self._process:
            return None
        self._is_over.set()
        self._simulation.watchers.guarded("the host's memory at the end", self._look)()
        costs = [PYTHON, *self._costs()]
        return HostUse(
            host=launched_as("GROUP_RANK") or 0,
            peak_bytes=self._peak,
            least_bytes=self._least,
            own_bytes=sum(cost.own_bytes for cost in costs),
            file_bytes=sum(cost.file_bytes for cost in costs),
        )

    def _run(self) -> None:
        began, pause = time.monotonic(), _LEAST_SECONDS
        while not self._is_over.wait(pause) and not self._simulation.is_over:
            self._look()
            spent = time.thread_time() - self._forked.spent
            pause = spent / _SHARE - (time.monotonic() - began)
            pause = min(max(pause, _LEAST_SECONDS), _MOST_SECONDS)

    def _look(self) -> None:
        with self._lock:
            memory = resident()
            if memory is None or self._before_import is not None:
                return
            library, machine = self._simulation.library, self._simulation.machine
            account = library.host_account()
            now, most = self._forked.look()
            written = int(library.lib.plimsoll_pinned_written_bytes())
            other = machine.shared_total_bytes - machine.shared_free_bytes
            other -= int(library.lib.plimsoll_registered_written_bytes())
            other += memory.shared - written
            other -= self._before + account.extra + self._own_records()
            # `account.most_absent` was reached between the last reading and this one. The process's
            # own memory at that moment is unknown. `beside` estimates it as the smaller of its
            # values at these two readings.
            beside, self._own = min(memory.own, self._own), memory.own
            seen = max(memory.own + account.absent, beside + account.most_absent)
            self._least = max(self._least, seen + now + other)
            most += memory.most_own + account.most_absent + self._loaders.waiting_bytes
            self._peak = max(self._peak, self._least, most + other)

    def _own_records(self) -> int:
        """Returns the memory of the simulation's own records."""
        events = sum(each.engine.history_size for each in self._simulation.allocators)
        return events * _EVENT_BYTES + sum(map(len, self._labels.by_device)) * _LABEL_BYTES

    def _torch_comes(self) -> None:
        memory = resident()
        if memory is not None:
            self._look()
            self._before_import = memory.own

    def _torch_came(self) -> None:
        with self._lock:
            memory = resident()
            if memory is not None and self._before_import is not None:
                self._before += memory.own - self._before_import
            self._before_import = None
            self._simulation.library.host_account()
        self._loaders.install(sys.modules["torch"])

    def _costs(self) -> list[Any]:
        if "torch" not in sys.modules:
            return []
        contexts = len(self._simulation.contexts)
        further = max(0, contexts - 1) + self._forked.uses_cuda
        costs = [TORCH, *([CONTEXT] if contexts else []), *[FURTHER_CONTEXT] * further]
        library = self._simulation.library
        names = {library.name(number) for number in {each.operation for each in library.sites()}}
        plain = {name.removeprefix("aten::") for name in names}
        if plain & _PRODUCTS:
            costs.append(CUBLAS)
        if any("conv" in name or "cudnn" in name for name in plain):
            costs.append(CUDNN)
        return costs


class _BeforeTorch(importlib.abc.MetaPathFinder):
    """An import hook that only notices the import of PyTorch. Python's own hooks do the imports."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:  # noqa: ARG002
        if name == "torch":
            self._tell()
