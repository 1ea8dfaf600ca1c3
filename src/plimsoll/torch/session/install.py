"""`plimsoll.install`, and the installation that environment variables ask for.

The installed allocator publishes its counters, can be recorded, and prints a summary of its use.
Array libraries such as CuPy get their memory from the same engines.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, get_args

from plimsoll.base.errors import InputError
from plimsoll.base.systems import require_linux
from plimsoll.base.telemetry.exit_summaries import report_at_exit, torch_summaries
from plimsoll.base.telemetry.peak_resets import TorchPeaks
from plimsoll.base.telemetry.publisher import publish
from plimsoll.base.telemetry.torch_counters import EngineCounters, TorchCounters
from plimsoll.base.torch_environment import WITHOUT_CACHE, is_caching_forbidden
from plimsoll.engine.current import current_engines
from plimsoll.engine.protocol import LiveAllocatorName
from plimsoll.engine.real_gpus import count_gpus
from plimsoll.offloading.tiers.limits import Tiers
from plimsoll.offloading.tiers.reports import memory_snapshot, torch_snapshot
from plimsoll.torch.array_libraries.serving import LibraryName, check_libraries, serve_libraries
from plimsoll.torch.building.versions import is_cuda_build
from plimsoll.torch.live.live_engines import (
    is_installed,
    is_under_pytorch,
    put_in_place,
)
from plimsoll.torch.session.environment import watch_if_asked
from plimsoll.torch.session.planned import tell_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plimsoll.base.telemetry.counter_source import CounterSource
    from plimsoll.engine.protocol import Engines, SpillPolicyName
    from plimsoll.offloading.tiers.rebalancing import RebalanceTime

_NAMES = get_args(LiveAllocatorName)
_TIERS = ("POLICY", "DEDICATED", "SHARED", "REBALANCE")
_LIBRARIES = get_args(LibraryName)
_NO_GPU = "there is no NVIDIA GPU here; `plimsoll run --simulate` needs none"


def install(
    allocator: LiveAllocatorName = "elastic",
    *,
    conf: str | None = None,
    policy: SpillPolicyName | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    rebalance: RebalanceTime | None = None,
    plan: str | os.PathLike[str] | None = None,
    pytorch: bool = True,
    cupy: bool = False,
    numba: bool = False,
    rmm: bool = False,
) -> None:
    """Makes PyTorch and other libraries use plimsoll's allocator in this process.

    Call it before the first tensor is made on a GPU. All of torch.cuda's memory functions continue
    to work. A second call must have the same arguments, but may add libraries. If the GPUs are
    simulated, the call sets only the tiers. `allocator` must then be the simulation's allocator.

    >>> import plimsoll
    >>> plimsoll.install(policy="spill", dedicated="6GiB")  # doctest: +SKIP

    Args:
        allocator: "elastic", which wastes almost nothing, or "native", PyTorch's own rules.
        conf: Settings in the form of PYTORCH_CUDA_ALLOC_CONF; by default, those of the environment.
            "native" follows every key, "elastic" only `per_process_memory_fraction`.
        policy: The policy for requests when dedicated memory is full; see `plimsoll.set_tiers`.
        dedicated: How much of each card's own memory PyTorch may use, in bytes or as "6GiB".
        shared: How much host memory each GPU may use; by default, half of the host's memory.
        rebalance: When spilled memory moves back to the card; see `plimsoll.set_tiers`.
        plan: The file of a plan, for "elastic" only. A plan has an address for each large request
            (docs/plans.md). Simulated GPUs have their plan from the start.
        pytorch: Whether PyTorch uses the allocator. With False, PyTorch need not be installed; this
            is for programs that use only other libraries.
        cupy: Whether CuPy's arrays use the allocator. docs/live.md explains the libraries.
        numba: Whether Numba's device arrays use it. Call `install` before the first such array.
        rmm: Whether buffers of RMM, and so those of RAPIDS, use it.

    Raises:
        InputError: If this is not Linux, PyTorch has no CUDA, or there is no GPU. If PyTorch or
            Numba has allocated GPU memory already, or `install` was called with other arguments. If
            a library is missing, or a library is named although the GPUs are simulated. If a size
            is larger than the memory, or the configuration is invalid. If a size is too large for
            only some of the cards, `install` raises no error, but all requests on these cards fail.
    """
    if allocator not in _NAMES:
        raise InputError(f"unknown allocator {allocator!r}; there are {' and '.join(_NAMES)}")
    tiers = Tiers.parse(policy, dedicated, shared, rebalance)
    wanted = {"cupy": cupy, "numba": numba, "rmm": rmm}
    libraries = [name for name in _LIBRARIES if wanted[name]]
    if not pytorch and not libraries:
        raise InputError("pytorch=False leaves nothing to serve: name a library, such as cupy=True")
    require_linux("plimsoll.install")
    there = current_engines()
    if there is not None and not is_installed():
        if libraries:
            raise InputError(f"{' and '.join(libraries)} cannot run on simulated GPUs")
        _use_simulated(there, allocator, tiers)
        return
    if pytorch:
        _check_pytorch()
    elif count_gpus() == 0:
        raise InputError(_NO_GPU)
    file = None if plan is None else os.fspath(plan)
    _install(allocator, conf, tiers, libraries, plan=file, under_pytorch=pytorch)


def _check_pytorch() -> None:
    if not is_cuda_build():
        raise InputError("the installed PyTorch has no CUDA; install a build for NVIDIA GPUs")
    import torch

    if torch.cuda.device_count() == 0:
        raise InputError(_NO_GPU)


def _use_simulated(engines: Engines, allocator: LiveAllocatorName, tiers: Tiers) -> None:
    """Sets the tiers of simulated GPUs.

    Raises:
        InputError: If `allocator` is not the one with which the GPUs are simulated.
    """
    if engines.allocator != allocator:
        raise InputError(
            f"the simulated GPUs have the {engines.allocator} allocator: choose --allocator "
            f"{allocator} where they are simulated"
        )
    for engine in engines.opened().values():
        tiers.apply(engine)


def install_from_environment() -> None:
    """Installs what PLIMSOLL_ALLOCATOR and similar variables ask for.

    If the installation fails, prints the error and ends the process. PLIMSOLL_POLICY, _DEDICATED,
    _SHARED, _REBALANCE and _PLAN take the same values as the arguments of `install`.
    PLIMSOLL_CUPY=1, _NUMBA=1 and _RMM=1 add libraries. If the process has no GPU, or its PyTorch
    has no CUDA, nothing is installed, because such a process uses no GPU.
    """
    name = os.environ.get("PLIMSOLL_ALLOCATOR") or "torch"
    try:
        if name not in (*_NAMES, "torch"):
            raise InputError(
                f"PLIMSOLL_ALLOCATOR is {name!r}; there are {', '.join(_NAMES)} and torch"
            )
        if not is_cuda_build():
            return
        import torch

        if torch.cuda.device_count() == 0:
            return
        # Metrics and the recording start at the first use of CUDA, when the allocator is already
        # installed.
        watch_if_asked(torch)
        if name != "torch":
            tiers = Tiers.parse(*(os.environ.get(f"PLIMSOLL_{key}") for key in _TIERS))
            asked = [one for one in _LIBRARIES if _is_on(f"PLIMSOLL_{one.upper()}")]
            plan = os.environ.get("PLIMSOLL_PLAN") or None
            _install(name, None, tiers, asked, plan=plan)  # type: ignore[arg-type]
            return
        _tell_of_forbidden_cache()
        _publish_once_cuda_runs(TorchCounters(), torch_snapshot)
        if to := _report():
            peaks = TorchPeaks(torch)
            report_at_exit(lambda: torch_summaries(peaks), to)
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(2)


def _report() -> str:
    to = os.environ.get("PLIMSOLL_REPORT", "")
    return "" if to == "0" else to


def _is_on(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def _install(
    allocator: LiveAllocatorName,
    conf: str | None,
    tiers: Tiers,
    libraries: Collection[LibraryName] = (),
    *,
    plan: str | None = None,
    under_pytorch: bool = True,
) -> None:
    to = _report()
    was_there, was_under_pytorch = is_installed(), is_under_pytorch()
    check_libraries(libraries)  # first, so that a refusal changes nothing
    if under_pytorch and not was_under_pytorch:
        _tell_of_forbidden_cache()
    engines = put_in_place(
        allocator, conf, tiers, plan=plan, keeps_summary=bool(to), under_pytorch=under_pytorch
    )
    if plan is not None and not was_there:
        tell_of_plan(engines, plan, is_summarized=bool(to))
    if to and not was_there:
        report_at_exit(engines.summaries, to)
    if under_pytorch and not was_under_pytorch:
        _publish_once_cuda_runs(EngineCounters(engines), memory_snapshot)
    serve_libraries(libraries, engines)


def _tell_of_forbidden_cache() -> None:
    """Warns if the environment makes PyTorch pass every allocator by."""
    if is_caching_forbidden():
        print(f"plimsoll: {WITHOUT_CACHE}; plimsoll's allocator serves none", file=sys.stderr)


def _publish_once_cuda_runs(source: CounterSource, snapshot: Callable[[], dict[str, Any]]) -> None:
    import torch

    torch.cuda._lazy_call(lambda: publish(source, snapshot))
