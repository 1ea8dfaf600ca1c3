"""Runs plimsoll's allocators on real GPUs, for PyTorch or only for other libraries.

plimsoll replaces PyTorch's allocator before the first allocation. PyTorch initialises the new
allocator when it initialises CUDA. A GPU's engine is made when the GPU is first used, because the
engine makes a context on the GPU.

The new allocator is in a C++ library, the bridge. If the bridge cannot be built for the installed
PyTorch, plimsoll uses PyTorch's interface for pluggable allocators. Allocating and freeing then
works, but PyTorch has no statistics and no snapshots, and cannot share tensors between processes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.telemetry.exit_summaries import ExitSummary, make_summary
from plimsoll.base.telemetry.job import rank_of_process
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.base.telemetry.torch_counters import torch_pinned_bytes
from plimsoll.base.units import format_size
from plimsoll.engine.current import set_engines
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.engine.plans.program_plan import require_elastic
from plimsoll.engine.plans.use import PlanUse
from plimsoll.offloading.tiers.limits import Tiers
from plimsoll.torch.building.compiler import load
from plimsoll.torch.building.versions import NEWEST, rules_version, tell_if_unknown, text
from plimsoll.torch.live.bridge import BRIDGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.protocol import LiveAllocatorName


_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first one wins, as in PyTorch
_OPEN_ENGINE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t
)
_TOO_LATE = (
    "PyTorch has allocated GPU memory already; call plimsoll.install() before the first tensor on "
    "a GPU, or start the script with `plimsoll run`"
)


@dataclass(frozen=True)
class _Choice:
    allocator: LiveAllocatorName
    conf: str
    tiers: Tiers
    plan: str | None = None


class LiveEngines:
    """The engines of this process: plimsoll's allocators, one for each GPU.

    An engine is never destroyed. It serves requests only once its limits have been set.
    """

    def __init__(self, choice: _Choice, *, keeps_summary: bool) -> None:
        self._conf = choice.conf
        self._allocator = choice.allocator
        self._tiers = choice.tiers
        self._plan = None if choice.plan is None else read_plan(choice.plan)
        self._plan_file = choice.plan
        self._keeps_summary = keeps_summary
        self._version = _rules()
        # Reentrant: while an engine is made, Python's garbage collector may run code that calls
        # this object again.
        self._lock = threading.RLock()
        self._open: dict[int, _core.Engine] = {}
        self._limited: set[int] = set()
        self._told: Callable[[int], None] = lambda _: None

    def open(self, device: int) -> _core.Engine:
        """Returns the engine of a GPU.

        Raises:
            InputError: If the limits cannot be set on this GPU. Each later request then raises the
                error again.
            RuntimeError: If there is no such GPU, or it cannot be used.
        """
        with self._lock:
            if device not in self._open:
                engine = _core.Engine.cuda(
                    self._allocator, self._conf, self._version, device, self._keeps_summary
                )
                self._open[device] = engine
                self._follow_plan(engine, device)
                if engine.fell_back is not None:
                    print(f"plimsoll: {engine.fell_back}", file=sys.stderr)
            is_new = device not in self._limited
            if is_new:
                self._tiers.apply(self._open[device])
                self._limited.add(device)
        if is_new:
            self._told(device)
        return self._open[device]

    def _follow_plan(self, engine: _core.Engine, device: int) -> None:
        """Makes the engine follow the plan of this rank and GPU, if a plan's file was given.

        If the file has no plan for this rank and GPU, prints a line.
        """
        if self._plan is None or engine.fell_back is not None:
            return
        rank = rank_of_process()
        own = self._plan.for_process(rank, device)
        if own is not None:
            engine.set_plan(own)
            return
        whose = f"GPU {device}" if rank is None else f"rank {rank}, GPU {device}"
        print(printable(f"plimsoll: {self._plan_file} has no plan for {whose}"), file=sys.stderr)

    def plan_uses(self) -> dict[int, PlanUse]:
        """Returns how well each used GPU's requests followed the plan; empty without a plan."""
        if self._plan is None:
            return {}
        return {
            device: PlanUse.of_streams(engine.plan_use)
            for device, engine in sorted(self.opened().items())
            if engine.fell_back is None
        }

    def tell(self, told: Callable[[int], None]) -> None:
        """Calls `told` with the GPU of each existing engine now, and of each new engine later."""
        with self._lock:
            self._told = told
            there = sorted(self._limited)
        for device in there:
            told(device)

    @property
    def allocator(self) -> LiveAllocatorName:
        """Name of the engines' allocator."""
        return self._allocator

    def opened(self) -> dict[int, _core.Engine]:
        """Returns the existing engines, by GPU."""
        with self._lock:
            return dict(self._open)

    def configure(self, conf: str) -> bool:
        """Makes existing and future engines follow settings that the program gave to PyTorch.

        An engine that follows PyTorch's rules applies the settings to later requests, as PyTorch's
        own allocator does.

        Returns:
            Whether the settings have an effect; False if the open engines do not follow settings.

        Raises:
            InputError: If the settings are invalid. Nothing is changed then.
        """
        with self._lock:
            try:
                for engine in self._open.values():
                    engine.configure(conf)
                config = _core.AllocatorConfig.parse(self._conf, self._version)
                self._conf = config.with_settings(conf, self._version).text
            except _core.ConfigError as error:
                raise InputError(str(error)) from None
            return self._allocator == "native" or not self._open

    def summaries(self) -> list[ExitSummary]:
        """Returns a summary of each GPU's use."""
        plans = self.plan_uses()
        pinned_bytes = torch_pinned_bytes("peak") if sys.modules.get("torch") else None
        summaries = [
            make_summary(
                self._allocator if engine.fell_back is None else "native",
                device,
                {**engine.account(), "peak_pinned_bytes": pinned_bytes},
            )
            for device, engine in sorted(self._open.items())
        ]
        return [
            replace(each, plan=plans[each.device].line()) if each.device in plans else each
            for each in summaries
        ]


def _rules() -> str:
    """Returns the PyTorch version whose rules the engines follow.

    If PyTorch is missing or too old, this is the newest version whose rules plimsoll knows.
    """
    try:
        return rules_version()
    except InputError:
        return text(NEWEST)


@dataclass(frozen=True)
class _Installed:
    choice: _Choice
    engines: LiveEngines
    keep: Any = None  # objects that C++ calls; None if PyTorch keeps its own allocator


_installed: _Installed | None = None


def is_installed() -> bool:
    """Returns whether plimsoll's allocator is installed, under PyTorch or other libraries."""
    return _installed is not None


def is_under_pytorch() -> bool:
    """Returns whether PyTorch uses plimsoll's allocator."""
    return _installed is not None and _installed.keep is not None


def put_in_place(
    allocator: LiveAllocatorName,
    conf: str | None,
    tiers: Tiers,
    *,
    plan: str | None = None,
    keeps_summary: bool,
    under_pytorch: bool = True,
) -> LiveEngines:
    """Makes the engines of this process and puts them under PyTorch.

    A process has one set of engines: further calls must have the same arguments.

    Args:
        allocator: The allocator's name.
        conf: Settings in the form of PYTORCH_CUDA_ALLOC_CONF. If `conf` is None, they are read
            from the environment: from PYTORCH_ALLOC_CONF or, if it is not set, from
            PYTORCH_CUDA_ALLOC_CONF.
        tiers: The settings of memory tiers on every GPU.
        plan: The file of a plan, which has an address for each large request. The elastic allocator
            follows it.
        keeps_summary: Whether the engines collect the data for `LiveEngines.summaries`.
        under_pytorch: Whether to put the engines under PyTorch, if no earlier call has done so.

    Returns:
        The engines, one for each GPU that is used.

    Raises:
        InputError: See `plimsoll.install`.
    """
    global _installed
    given = conf
    if conf is None:
        conf = next((os.environ[name] for name in _CONF if name in os.environ), "")
    if allocator != "elastic" and (tiers.policy == "spill" or tiers.shared_bytes is not None):
        raise InputError("only the elastic allocator uses shared memory")
    if plan is not None:
        require_elastic(allocator)
        plan = str(Path(plan).absolute())
    choice = _Choice(allocator, conf, tiers, plan)
    if _installed is None:
        try:
            _core.AllocatorConfig.parse(conf, _rules())
        except _core.ConfigError as error:
            raise InputError(f"the configuration of the allocator: {error}") from None
        _check_sizes(tiers)
        engines = LiveEngines(choice, keeps_summary=keeps_summary)
    elif _installed.choice == choice:
        engines = _installed.engines
    else:
        there = _installed.choice
        raise InputError(
            f"the {there.allocator} allocator is installed already, with the configuration "
            f"{there.conf!r}, {there.tiers} and the plan {there.plan}; a process has one"
        )
    keep = None if _installed is None else _installed.keep
    if under_pytorch and keep is None:
        keep = _put_under_pytorch(engines, given)
    _installed = _Installed(choice, engines, keep)
    set_engines(engines)
    return engines


def _put_under_pytorch(engines: LiveEngines, conf: str | None) -> Any:
    """Replaces PyTorch's allocator. Returns the objects that C++ calls, to be kept alive."""
    rules_version()  # raises if PyTorch is missing or too old
    import torch

    other = torch.cuda.memory.get_allocator_backend()
    if other != "native":
        raise InputError(f"PyTorch runs on the allocator {other!r} already; a process has one")
    if conf is not None:
        _settings(torch)(conf)  # PyTorch itself uses some settings, such as those of pinned memory
    tell_if_unknown()
    try:
        library = load(BRIDGE)
    except InputError as error:
        keep: Any = _use_pluggable(torch, engines, str(error))
    else:
        keep = _use_bridge(torch, library, engines)
    _follow_settings(torch, engines)
    return keep


def _check_sizes(tiers: Tiers, nvml: Nvml | None = None) -> None:
    """Refuses sizes that are too large.

    Dedicated memory must not be more than the largest card has, and shared memory must not be more
    than half of the host's memory.
    """
    host = _core.host_memory()[1] // 2
    if tiers.shared_bytes is not None and tiers.shared_bytes > host:
        raise InputError(
            f"{format_size(tiers.shared_bytes)} of shared memory is more than the host can lock "
            f"for GPUs: {format_size(host)}, half of its memory"
        )
    if tiers.dedicated_bytes is None:
        return
    totals = [gpu.total_bytes for gpu in (nvml or Nvml()).read().gpus]
    known = [total for total in totals if total is not None]
    if known and len(known) == len(totals) and tiers.dedicated_bytes > max(known):
        raise InputError(
            f"{format_size(tiers.dedicated_bytes)} of dedicated memory is more than any card here "
            f"has: {format_size(max(known))}"
        )


def _use_bridge(torch: Any, library: ctypes.CDLL, engines: LiveEngines) -> Any:
    def open_engine(device: int, problem: Any, capacity: int) -> int | None:
        try:
            handle: int = engines.open(device).handle
            return handle
        except Exception as error:  # C++ raises the error again, in the request for memory
            text = str(error).encode()[: capacity - 1] + b"\0"
            ctypes.memmove(problem, text, len(text))
            return None

    callback = _OPEN_ENGINE(open_engine)
    install_bridge = library.plimsoll_bridge_install
    install_bridge.argtypes = [ctypes.c_void_p, _OPEN_ENGINE]
    status = install_bridge(_core.engine_api(), callback)
    if status == 1:
        raise InputError(
            "the cached bridge belongs to another build of plimsoll; delete it from the cache"
        )
    if status == 2:
        raise InputError(_TOO_LATE)
    if status != 0:
        raise InputError("CUDA failed before the allocator could be put in place")
    # Another library may open an engine first. PyTorch's allocator then adopts that engine as soon
    # as PyTorch initialises CUDA.
    adopt = library.plimsoll_bridge_adopt
    adopt.argtypes, adopt.restype = [ctypes.c_int], None
    torch.cuda._lazy_call(lambda: engines.tell(adopt))
    return callback


def _use_pluggable(torch: Any, engines: LiveEngines, reason: str) -> Any:
    functions = _core.pluggable_functions()
    allocator = torch._C._cuda_customAllocator(functions["alloc"], functions["free"])
    allocator.set_reset_fn(functions["reset"])
    allocator.set_memory_fraction_fn(functions["memory_fraction"])
    allocator.set_base_alloc_fn(functions["base_alloc"])
    allocator.set_record_stream_fn(functions["record_stream"])
    allocator.set_begin_allocate_to_pool(functions["begin_allocate_to_pool"])
    allocator.set_end_allocate_to_pool_fn(functions["end_allocate_to_pool"])
    allocator.set_release_pool(functions["release_pool"])
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError:
        raise InputError(_TOO_LATE) from None
    # The pluggable functions cannot open an engine, so each GPU gets its engine as soon as CUDA is
    # initialised.
    torch.cuda._lazy_call(
        lambda: [engines.open(device) for device in range(torch.cuda.device_count())]
    )
    warnings.warn(
        f"plimsoll allocates without PyTorch's memory statistics, snapshots, history and sharing "
        f"of tensors between processes: {reason}",
        RuntimeWarning,
        stacklevel=5,
    )
    return allocator


def _settings_name(torch: Any) -> str:
    newer = "_accelerator_setAllocatorSettings"
    return (
        newer if hasattr(torch._C, newer) else "_cuda_cudaCachingAllocator_set_allocator_settings"
    )


def _settings(torch: Any) -> Callable[[str], None]:
    function: Callable[[str], None] = getattr(torch._C, _settings_name(torch))
    return function


def _follow_settings(torch: Any, engines: LiveEngines) -> None:
    """Makes the engines follow the settings that the program gives to PyTorch from now on."""
    set_in_torch = _settings(torch)

    def set_settings(conf: str) -> None:
        set_in_torch(conf)
        if not engines.configure(conf):
            warnings.warn(
                "GPU memory is in use, so these settings have no effect on plimsoll's allocator; "
                "give them to plimsoll.install(conf=...)",
                RuntimeWarning,
                stacklevel=3,
            )

    setattr(torch._C, _settings_name(torch), set_settings)
