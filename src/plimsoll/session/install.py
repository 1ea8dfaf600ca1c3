"""`plimsoll.install`, and what the environment asks for.

The allocator that comes under PyTorch tells about itself, is recorded, and accounts for its use.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, get_args

from plimsoll.engines.current import current_engines
from plimsoll.engines.protocol import LiveAllocatorName
from plimsoll.errors import InputError
from plimsoll.session.environment import record_if_asked
from plimsoll.telemetry.accounts import report_at_exit, torch_accounts
from plimsoll.telemetry.publisher import publish
from plimsoll.telemetry.torch_counters import EngineCounters, TorchCounters
from plimsoll.tiers.limits import Tiers
from plimsoll.torch.building.versions import is_cuda_build
from plimsoll.torch.live.live_engines import is_installed, put_in_place

if TYPE_CHECKING:
    from plimsoll.engines.protocol import Engines, SpillPolicyName
    from plimsoll.telemetry.counter_source import CounterSource
    from plimsoll.tiers.rebalancing import RebalanceTime

_NAMES = get_args(LiveAllocatorName)
_TIERS = ("POLICY", "DEDICATED", "SHARED", "REBALANCE")


def install(
    allocator: LiveAllocatorName = "elastic",
    *,
    conf: str | None = None,
    policy: SpillPolicyName | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    rebalance: RebalanceTime | None = None,
) -> None:
    """Put plimsoll's allocator under PyTorch, for this process.

    Call it before the first tensor on a GPU. All of torch.cuda's memory functions go on to work.
    Calling it again with the same choice does nothing. On simulated GPUs it sets the tiers; their
    allocator was chosen where they were simulated, and must be the same one.

    >>> import plimsoll
    >>> plimsoll.install(policy="spill", dedicated="6GiB")  # doctest: +SKIP

    Args:
        allocator: "elastic", which wastes almost nothing, or "native", PyTorch's own rules.
        conf: As PYTORCH_CUDA_ALLOC_CONF; by default what the environment says. "native" honours
            every key, "elastic" `per_process_memory_fraction`.
        policy: What happens when dedicated memory is spent, see `plimsoll.set_tiers`.
        dedicated: The most of each card's own memory, as bytes or "6GiB".
        shared: The most of the host's memory that each GPU may use; by default half of it.
        rebalance: When spilled memory comes back to the card, see `plimsoll.set_tiers`.

    Raises:
        InputError: If PyTorch has no CUDA, there is no GPU, PyTorch has allocated GPU memory
            already, another choice is installed, a size is more than there is, or the configuration
            is bad. A size that only some of the cards have is found out when one that has not is
            first used; that request fails, and all others there.
    """
    if allocator not in _NAMES:
        raise InputError(f"unknown allocator {allocator!r}; there are {' and '.join(_NAMES)}")
    tiers = Tiers.parse(policy, dedicated, shared, rebalance)
    there = current_engines()
    if there is not None and not is_installed():
        _use_simulated(there, allocator, tiers)
        return
    if not is_cuda_build():
        raise InputError("the installed PyTorch has no CUDA; install a build for NVIDIA GPUs")
    import torch

    if torch.cuda.device_count() == 0:
        raise InputError("there is no NVIDIA GPU here; `plimsoll run --simulate` needs none")
    _install(allocator, conf, tiers)


def _use_simulated(engines: Engines, allocator: LiveAllocatorName, tiers: Tiers) -> None:
    """Simulated GPUs have their allocator from the start."""
    if engines.allocator != allocator:
        raise InputError(
            f"the simulated GPUs have the {engines.allocator} allocator: choose --allocator "
            f"{allocator} where they are simulated"
        )
    for engine in engines.opened().values():
        tiers.apply(engine)


def install_from_environment() -> None:
    """Do what PLIMSOLL_ALLOCATOR and its like say; ends the process if that is impossible.

    PLIMSOLL_POLICY, _DEDICATED, _SHARED and _REBALANCE are as `install` takes them. Where
    PyTorch has no CUDA, or there is no GPU, it does nothing: such a process uses no GPU.
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
        record_if_asked(torch)  # the allocator is in place by then
        if name != "torch":
            tiers = Tiers.parse(*(os.environ.get(f"PLIMSOLL_{key}") for key in _TIERS))
            _install(name, None, tiers)  # type: ignore[arg-type]
            return
        _publish_once_cuda_runs(TorchCounters())
        if to := _report():
            report_at_exit(torch_accounts, to)
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(2)


def _report() -> str:
    to = os.environ.get("PLIMSOLL_REPORT", "")
    return "" if to == "0" else to


def _install(allocator: LiveAllocatorName, conf: str | None, tiers: Tiers) -> None:
    to = _report()
    is_first = not is_installed()
    engines = put_in_place(allocator, conf, tiers, keeps_account=bool(to))
    if is_first:
        if to:
            report_at_exit(engines.accounts, to)
        _publish_once_cuda_runs(EngineCounters(engines))


def _publish_once_cuda_runs(source: CounterSource) -> None:
    import torch

    torch.cuda._lazy_call(lambda: publish(source))
